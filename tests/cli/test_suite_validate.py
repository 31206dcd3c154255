"""`atrex suite validate`: what it keeps, what it goes on from, and what it says of a shape that cannot be run."""

from __future__ import annotations

import json
from functools import partial

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.problems.generate import generate_roofline
from atrex.problems.skeleton import new_problem

RUN = CliRunner()


def atrex(*arguments):
    return RUN.invoke(app, ["suite", "validate", *map(str, arguments)])


def document(*arguments):
    done = atrex(*arguments, "--json")
    assert done.stdout, done.exception
    return done.exit_code, json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path):
    """A sound operator of two shapes: 0 has one token, 1 has 2048."""
    return new_problem("scale", tmp_path / "suite")


def fail_on(tokens, folder, statement):
    """Let the reference do something else with so many tokens."""
    path = folder / "reference.py"
    head = "        acc = "
    path.write_text(
        path.read_text().replace(head, f"        if len(x) == {tokens}:\n            {statement}\n{head}", 1)
    )


fail_on_one = partial(fail_on, 2048)


def test_the_document_says_what_ran_where_and_what_it_cost(folder):
    code, found = document(folder)
    assert code == 0
    assert found["about"]["chip"] == "cpu" and found["about"]["versions"]["torch"] and found["about"]["seconds"] > 0
    (operator,) = found["operators"]
    assert operator["failures"] == [] and set(operator["units"]) == {"0", "1"}
    assert all(unit["reference_seconds"] <= unit["seconds"] for unit in operator["units"].values())
    assert found["summary"]["slowest"] and found["summary"]["failures"] == 0


@pytest.mark.parametrize("options", [[], ["--mutants", "--no-compile"]])
def test_a_shape_without_memory_is_a_finding_on_that_shape(folder, options):
    fail_on_one(folder, "raise torch.OutOfMemoryError('tried to allocate 900 GiB')")
    code, found = document(folder, *options)
    (operator,) = found["operators"]
    assert code == 1
    if options:
        assert list(operator["failed"]) == ["1"] and "900 GiB" in operator["failed"]["1"]
        assert all(row["passed"] or row["failed_by"] for row in operator["mutants"])
    else:
        (failure,) = operator["failures"]
        assert (failure["shape"], failure["check"]) == ("1", "fits into the device's memory")
        assert "900 GiB" in failure["detail"]


def test_a_reference_that_raises_is_a_finding_on_that_shape(folder):
    fail_on_one(folder, "raise ValueError('no such size')")
    _, found = document(folder)
    (failure,) = found["operators"][0]["failures"]
    assert (failure["shape"], failure["check"]) == ("1", "runs") and "no such size" in failure["detail"]


def test_processes_find_what_one_finds(folder):
    fail_on_one(folder, "raise ValueError('no such size')")
    _, here = document(folder)
    _, there = document(folder, "--jobs", 2)
    assert there["operators"][0]["failures"] == here["operators"][0]["failures"]
    assert there["summary"]["units"] == here["summary"]["units"]


@pytest.mark.slow
def test_over_its_time_it_lists_what_is_left_and_goes_on_from_there(folder, tmp_path):
    out = tmp_path / "found.json"
    fail_on_one(folder, "import time; time.sleep(100)")
    done = atrex(folder, "--budget-s", 12, "--out", out)
    assert done.exit_code == 0 and "not run here: time budget spent: 2 shapes: 0, 1" in done.stdout
    assert json.loads(out.read_text())["operators"][0]["not_run"]["1"] == "time budget spent"
    atrex(folder, "--shapes", "0", "--out", out, "--resume")
    (operator,) = json.loads(out.read_text())["operators"]
    assert list(operator["units"]) == ["0"] and operator["not_run"] == {}


def test_an_interrupt_keeps_what_was_found(folder, tmp_path):
    out = tmp_path / "found.json"
    (folder / "shapes.json").write_text(
        (folder / "shapes.json").read_text().replace('"token_count": 1,', '"token_count": 2,')
    )
    generate_roofline(folder)
    fail_on(2, folder, "raise KeyboardInterrupt")  # the smaller shape, which comes last
    done = atrex(folder, "--out", out)
    assert done.exit_code == 130 and f"{out} holds what was found, go on with --resume" in done.stderr
    assert list(json.loads(out.read_text())["operators"][0]["units"]) == ["1"]


@pytest.mark.parametrize("options", [[], ["--mutants", "--no-compile"]])
def test_a_run_that_goes_on_checks_nothing_twice(folder, tmp_path, options):
    out = tmp_path / "found.json"
    atrex(folder, *options, "--out", out)
    first = json.loads(out.read_text())
    atrex(folder, *options, "--out", out, "--resume")
    again = json.loads(out.read_text())
    assert again["operators"] == first["operators"]


@pytest.mark.parametrize("options", [[], ["--mutants", "--no-compile"]])
def test_operators_are_gathered_in_one_file(folder, tmp_path, options):
    suite, out = folder.parent, tmp_path / "found.json"
    new_problem("other", suite)
    for operator in ("scale", "other"):
        atrex(suite, "--problem", operator, "--shapes", "0", *options, "--out", out, "--resume")
    found = json.loads(out.read_text())
    assert len(found["about"]["commands"]) == 2
    assert [each["operator"] for each in found["operators"]] == ["scale", "other"] and found["summary"]["units"] == 2


@pytest.mark.parametrize("options", [[], ["--mutants", "--no-compile"]])
def test_an_operator_that_has_changed_is_checked_anew_and_the_others_keep_what_was_found(folder, tmp_path, options):
    suite, out = folder.parent, tmp_path / "found.json"
    new_problem("other", suite)
    atrex(suite, "--shapes", "0", *options, "--out", out)
    first = json.loads(out.read_text())
    (folder / "input.py").write_text((folder / "input.py").read_text() + "\n# edited\n")
    done = atrex(suite, "--shapes", "0", *options, "--out", out, "--resume")
    again = json.loads(out.read_text())
    assert "changed since, checked anew: scale\n" in done.stderr
    assert again["about"]["suite"]["hash"] != first["about"]["suite"]["hash"]
    assert {each["operator"] for each in again["operators"]} == {"scale", "other"}
    kept = [next(each for each in found["operators"] if each["operator"] == "other") for found in (first, again)]
    assert kept[0] == kept[1]


def test_what_another_suite_wrote_is_not_gone_on_from(folder, tmp_path):
    out = tmp_path / "found.json"
    atrex(folder, "--shapes", "0", "--out", out)
    found = json.loads(out.read_text())
    del found["about"]["suite"]["operators"]
    found["about"]["suite"]["hash"] = "another"
    out.write_text(json.dumps(found))
    error = atrex(folder, "--out", out, "--resume").exception
    assert isinstance(error, UserError) and "suite" in str(error)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--resume"], "--out FILE"),
        (["--out", "/nowhere/found.json"], "--out /nowhere/found.json: cannot be written"),
        (["--shapes", "99"], "no shape '99'"),
    ],
)
def test_bad_options_are_one_line(folder, arguments, says):
    error = atrex(folder, *arguments).exception
    assert isinstance(error, UserError) and says in str(error) and "\n" not in str(error)
