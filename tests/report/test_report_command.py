import csv
import json

import pytest
import typer
from studies import CHANGED, about, generated, judged, write_generation
from synthetic import error, failed, unit
from typer.testing import CliRunner

from atrex.cli.report import report
from atrex.errors import UserError

app = typer.Typer()
app.command()(report)


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if isinstance(result.exception, UserError):
        raise result.exception
    return result


def document(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def tables(*arguments):
    (group,) = document(*arguments)["groups"]
    return {name: table["rows"] for name, table in group["tables"].items()}


def mla(*s, **fields):
    """All three shapes of an operator; one whose S is None is wrong."""
    return [
        failed("runtime", "numeric_mismatch", "mla_decode_attention", str(i), **fields) if each is None
        else unit("mla_decode_attention", str(i), each, **fields)
        for i, each in enumerate(s)
    ]  # fmt: skip


def test_every_run_below_a_folder_is_reported(tmp_path):
    for name in ("one", "two"):
        judged(tmp_path / "deep" / name, {name: mla(0.1, 0.2, 0.3)})
    assert [row["set"] for row in tables(tmp_path)["main"]] == ["one", "two"]


def test_the_main_table_holds_what_score_says(tmp_path):
    from atrex.cli.score import score

    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, None, share=0.7, baselines={"production": 20.0})})
    other = typer.Typer()
    other.command()(score)
    said = json.loads(CliRunner().invoke(other, [str(path), "--json"]).stdout)["runs"][0]["candidates"][0]["summary"]
    (row,) = tables(path)["main"]
    same = ("compile_rate", "correctness", "adoption", "s_agg", "s_agg_strict", "operators")
    assert {key: row[key] for key in same} == {key: said[key] for key in same}
    assert (row["vs_production"], row["vs_production_operators"]) == (2.0, 1)
    assert (row["operators_judged"], row["units_judged"], row["units"]) == (1, 3, 440)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        ({"suite_hash": "x"}, {"suite_hash": "y"}, "suite hash x and y"),
        ({"chip": "cpu", "device_name": "A"}, {"chip": "cpu", "device_name": "B"}, "device A and B"),
    ],
)
def test_sets_of_other_suites_and_devices_are_not_compared(tmp_path, one, other, said):
    for name, run_fields in (("one", one), ("two", other)):
        path = judged(tmp_path / name, {name: mla(0.1, chip=run_fields.get("chip", "H200"))})
        about_run = json.loads((path / "run.json").read_text()) | run_fields
        (path / "run.json").write_text(json.dumps(about_run))
    result = run(tmp_path)
    assert result.exit_code == 1 and said in result.stdout


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"prompt_sha256": "b" * 64}, "prompt hash aaaaaaaaaaaa and bbbbbbbbbbbb"),
     ({"policy": "extended"}, "tool policy default and extended")],
)  # fmt: skip
def test_sets_asked_otherwise_have_tables_of_their_own(tmp_path, changed, said):
    for name, fields in (("one", {}), ("two", changed)):
        made = write_generation(
            tmp_path / "made" / name, [generated("mla_decode_attention")], about(model=name, **fields)
        )
        judged(tmp_path / "runs" / name, {f"{made}/sample-0": mla(0.1, 0.2, 0.3)})
    found = document(tmp_path / "runs")
    assert [g["sets"] for g in found["groups"]] == [["claude one"], ["claude two"]]
    assert all(len(g["tables"]["main"]["rows"]) == 1 for g in found["groups"])
    assert found["exit_code"] == 1 and said in found["differences"][0]


def test_sets_of_two_models_under_equal_conditions_share_tables(tmp_path):
    for name in ("one", "two"):
        made = write_generation(tmp_path / "made" / name, [generated("mla_decode_attention")], about(model=name))
        judged(tmp_path / "runs" / name, {f"{made}/sample-0": mla(0.1, 0.2, 0.3)})
    result = run(tmp_path / "runs", "--json")
    (group,) = json.loads(result.stdout)["groups"]
    assert group["sets"] == ["claude one", "claude two"] and result.exit_code == 0


def test_a_dsl_of_its_own_is_not_compared(tmp_path):
    judged(tmp_path / "one", {"one": mla(0.1)})
    judged(tmp_path / "two", {"two": mla(0.1, dsl="gluon")})
    assert "DSL triton and gluon" in document(tmp_path)["differences"][0]


def test_a_unit_in_error_exits_with_one(tmp_path):
    result = run(judged(tmp_path / "r", {"k": [error("unstable")]}))
    assert result.exit_code == 1 and "figures are not sound" in result.stdout


def test_a_model_that_was_generated_and_not_judged_is_in_no_table(tmp_path):
    judged(tmp_path / "run", {"k": mla(0.1)})
    write_generation(tmp_path / "made", [generated("rms_norm")], about(model="unjudged"))
    result = run(tmp_path)
    assert "no run here has judged it" in " ".join(result.stdout.split()) and "unjudged" not in result.stdout


def test_candidates_that_changed_since_are_not_joined(tmp_path):
    made = write_generation(tmp_path / "made", [generated("mla_decode_attention", sha=CHANGED)])
    path = judged(tmp_path / "run", {f"{made}/sample-0": mla(0.1)})
    found = document(path)
    assert "changed since" in found["notes"][0]
    assert found["groups"][0]["tables"]["main"]["rows"][0]["model"] is None
    assert found["groups"][0]["tables"]["tokens"]["rows"] == []


def test_a_generation_is_found_by_its_files_where_the_folder_has_moved(tmp_path):
    write_generation(tmp_path / "moved", [generated("mla_decode_attention")])
    judged(tmp_path / "run", {"elsewhere/sample-0": mla(0.1)})
    assert tables(tmp_path)["main"][0]["model"] == "m1"


def test_one_set_judged_in_two_runs_has_two_names(tmp_path):
    for name in ("one", "two"):
        judged(tmp_path / name, {"k": mla(0.1)})
    assert [row["set"] for row in tables(tmp_path)["main"]] == [f"k in {tmp_path / name}" for name in ("one", "two")]


def test_a_run_without_a_record_is_named_and_left_out(tmp_path):
    judged(tmp_path / "full", {"k": mla(0.1)})
    empty = judged(tmp_path / "empty", {"never": []})
    found = document(tmp_path)
    assert found["groups"][0]["sets"] == ["k"]
    assert found["notes"] == [f"{empty}: no unit of a candidate was recorded: in no table"]


def test_rows_of_groups_are_told_apart_in_one_file(tmp_path):
    judged(tmp_path / "one", {"one": mla(0.1)})
    judged(tmp_path / "two", {"two": mla(0.1, dsl="gluon")})
    run(tmp_path, "--out", tmp_path / "site")
    rows = csv.DictReader((tmp_path / "site" / "data" / "main.csv").open())
    assert [(row["group"], row["set"]) for row in rows] == [("1", "one"), ("2", "two")]


def test_weights_of_ones_own_count(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, 0.3)})
    (tmp_path / "weights.json").write_text('{"mla_decode_attention": 1}')
    (row,) = tables(path, "--weights", tmp_path / "weights.json")["main"]
    assert row["s_agg"] == 0.2


def test_data_are_written_as_csv_and_json(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, None)})
    run(path, "--out", tmp_path / "site")
    (row,) = csv.DictReader((tmp_path / "site" / "data" / "main.csv").open())
    assert row["set"] == "k" and float(row["correctness"]) == pytest.approx(2 / 3 / 30)
    assert row["adoption"] == ""
    assert json.loads((tmp_path / "site" / "data" / "report.json").read_text()) == document(path)


def test_quietly_it_writes_and_prints_no_table(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1, 0.2, 0.3)})
    assert run(path, "--out", tmp_path / "site", "--quiet").stdout == ""
    assert (tmp_path / "site" / "index.html").exists()
    with pytest.raises(UserError, match="--out"):
        run(path, "--quiet")


def test_an_earlier_reports_tables_do_not_stay(tmp_path):
    a, b = (judged(tmp_path / name, {name: mla(0.1)}) for name in ("a", "b"))
    site, data = tmp_path / "site", tmp_path / "site" / "data"
    run("--pair", a, b, "--out", site)
    assert (data / "pair.csv").exists() and not (data / "main.csv").exists() and (site / "optimizer.html").exists()
    run(a, "--out", site)
    assert not (data / "pair.csv").exists() and (data / "main.csv").exists() and not (site / "optimizer.html").exists()


def test_a_folder_with_files_of_something_else_is_left_alone(tmp_path):
    path = judged(tmp_path / "run", {"k": mla(0.1)})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("not a report")
    with pytest.raises(UserError, match="no report has written"):
        run(path, "--out", tmp_path / "mine")
    assert (tmp_path / "mine" / "index.html").read_text() == "not a report"


def test_a_run_of_baselines_is_compared_with(tmp_path):
    origin = {"name": "fla", "library": "fla-core", "version": "1", "calls": "f"}
    judged(tmp_path / "base", {"fla": mla(0.1, baseline=origin)})
    judged(tmp_path / "run", {"k": mla(0.1)})
    (row,) = tables(tmp_path)["main"]
    assert row["set"] == "k" and row["vs_fla"] == 1.0


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["--pair", "nowhere", "nowhere"]])
def test_bad_input_is_a_user_error(tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        run(*arguments)
