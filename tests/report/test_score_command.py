import json
from types import SimpleNamespace

import pytest
import typer
from synthetic import error, failed, random_suite, unit, write_run
from typer.testing import CliRunner

from atrex.cli.score import print_outcome, score
from atrex.errors import UserError
from atrex.scoring.aggregate import summarize
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.weights import published_weights

app = typer.Typer()
app.command()(score)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def document(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_json_holds_the_figures_of_every_candidate(tmp_path):
    records = random_suite()
    found = document(write_run(tmp_path, records))
    candidate = found["runs"][0]["candidates"][0]
    expected = summarize(records, published_weights().values, PUBLISHED_SHAPES)
    assert candidate["summary"]["s_agg"] == expected.s_agg > 0
    assert candidate["summary"]["s_agg_calibrated"] is None
    assert len(candidate["operators"]) == 30 and "units" not in candidate
    assert (candidate["candidate"], candidate["chip"], candidate["dsl"]) == ("kernels/triton", "H200", ["triton"])


def test_units_are_added_when_asked_for(tmp_path):
    path = write_run(tmp_path, [unit()])
    assert document(path, "--units")["runs"][0]["candidates"][0]["units"] == [unit().model_dump(mode="json")]
    assert "Units: kernels/triton" in run(path, "--units").stdout
    assert "Units:" not in run(path).stdout


def test_weights_file_reweights_a_finished_run(tmp_path):
    path = write_run(tmp_path / "run", [unit("rms_norm", s=0.5)])
    weights = tmp_path / "weights.json"
    weights.write_text('{"rms_norm": 2}')
    found = document(path, "--weights", weights)
    assert found["runs"][0]["candidates"][0]["summary"]["s_agg"] == 0.5
    assert "normalized to 1" in found["weights"]["notes"][0]
    assert "normalized to 1" in " ".join(run(path, "--weights", weights).stdout.split())


def test_an_evaluation_error_exits_with_one_and_a_failure_does_not(tmp_path):
    assert run(write_run(tmp_path / "a", [failed("runtime", "timeout")])).exit_code == 0
    assert run(write_run(tmp_path / "b", [error("unstable")])).exit_code == 1


def test_several_runs_are_told_apart(tmp_path):
    paths = write_run(tmp_path / "a", [unit()]), write_run(tmp_path / "b", [unit(s=0.25)])
    assert [r["run"] for r in document(*paths)["runs"]] == [str(p) for p in paths]
    assert all(f"Run {p}"[:100] in run(*paths).stdout for p in paths)


def test_an_evaluation_prints_its_units_and_where_they_are(capsys, tmp_path):
    outcome = SimpleNamespace(records=[unit()], about={"candidates": [{"path": "kernels"}]}, path=tmp_path)
    print_outcome(outcome, 2.5, False)
    printed = capsys.readouterr()
    assert "Units: kernels " in printed.out
    assert printed.err == f"1 unit in 2.5 s; records in {tmp_path}\n"


def test_an_evaluation_as_json_is_one_document(capsys):
    print_outcome(SimpleNamespace(records=[unit()], about={}, path=None), 2.5, True)
    found = json.loads(capsys.readouterr().out)["runs"][0]
    assert found["run"] is None and found["candidates"][0]["units"][0]["shape"] == "0"


def test_what_scoring_refuses_names_the_run(tmp_path):
    records = [unit(candidate="k/a.py"), unit(candidate="k/b.py")]
    path = write_run(tmp_path, records, candidates=["k"])
    result = run(path)
    assert isinstance(result.exception, UserError)
    assert str(result.exception) == f"{path}: rms_norm 0 stands twice: score one candidate set at a time"


@pytest.mark.parametrize("arguments", [["none"], [".", "--weights", "none.json"]])
def test_bad_input_is_a_user_error(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(run(*arguments).exception, UserError)


def test_the_published_ceiling_and_rule_stand_beside_ours(tmp_path):
    cases = {f"seed{i}": True for i in range(5)}
    roofline = {"roofline_us": 5.0, "bound": "memory", "S": 0.5, "published_us": 8.0, "published_S": 0.8}
    correctness = {"passed": True, "cases": cases, "published_check": False}
    path = write_run(tmp_path, [unit(roofline=roofline, correctness=correctness)])
    (candidate,) = document(path)["runs"][0]["candidates"]
    weight = published_weights().values["rms_norm"]
    assert candidate["summary"]["s_agg"] == pytest.approx(0.5 * weight)
    assert candidate["summary"]["s_agg_published_bound"] == pytest.approx(0.8 * weight)
    assert (candidate["operators"][0]["correct"], candidate["operators"][0]["published_correct"]) == (1, 0)
    printed = " ".join(run(path, "--units").stdout.split())
    assert "under equation 1 with the published W and Q" in printed
    assert "atol 1e-2, rtol 5e-2 on five seeds" in printed and "published rule" in printed
