"""Importance weights: the arithmetic of equations 2 and 3, and what must not change them."""

import json

import polars as pl
import pytest

from atrex.errors import UserError
from atrex.traces.fleet.gather import gather
from atrex.traces.fleet.spec import load_fleet
from atrex.traces.fleet.weights import fleet_weights, importance
from tests.traces import fleets, scene


def table(rows):
    """D of equation 2 from {(app, phase): {family: ns}}; families of the suite are their own operators."""
    beyond = {"gemm", "other"}
    flat = [(a, p, f, None if f in beyond else f, float(ns)) for (a, p), of in rows.items() for f, ns in of.items()]
    columns = {"app": pl.String, "phase": pl.String, "family": pl.String, "operator": pl.String, "ns": pl.Float64}
    return pl.DataFrame(flat, schema=columns, orient="row")


TWO = {
    ("chat", "prefill"): {"rms_norm": 10, "attention_forward": 30, "gemm": 60},
    ("chat", "decode"): {"rms_norm": 20, "paged_attention_decode": 30, "gemm": 40, "other": 10},
    ("search", "prefill"): {"rms_norm": 50, "attention_forward": 50, "gemm": 100},
}
HOURS = {"chat": 300.0, "search": 100.0}


def test_the_weights_of_a_fleet_by_hand():
    found = importance(table(TWO), HOURS)
    # rms_norm runs in both phases: chat (0.1 + 0.2) / 2, search 0.25 in the one phase that it has.
    scores = {
        "rms_norm": 0.75 * 0.15 + 0.25 * 0.25,
        "attention_forward": 0.75 * 0.3 + 0.25 * 0.25,
        "paged_attention_decode": 0.75 * 0.3,
    }
    assert {name: found.score(name) for name in scores} == pytest.approx(scores)
    assert found.weights == pytest.approx({name: s / sum(scores.values()) for name, s in scores.items()})
    assert found.score("gemm") == pytest.approx(0.75 * 0.5 + 0.25 * 0.5) and "gemm" not in found.weights


def test_unmapped_time_is_in_the_denominator():
    rows = {("chat", "decode"): {"rms_norm": 10, "silu_and_mul": 10, "other": 80}}
    found = importance(table(rows), {"chat": 1.0})
    assert found.score("rms_norm") == pytest.approx(0.1) and found.weights["rms_norm"] == pytest.approx(0.5)


def test_an_operator_runs_in_a_phase_from_the_stated_share_on():
    rows = {("chat", "prefill"): {"attention_forward": 400, "gemm": 600},
            ("chat", "decode"): {"attention_forward": 5, "gemm": 995}}  # fmt: skip
    few = importance(table(rows), {"chat": 1.0}, min_share=0.01)
    many = importance(table(rows), {"chat": 1.0}, min_share=0.001)
    assert few.families[1].phases == ("prefill",) and few.score("attention_forward") == pytest.approx(0.4)
    assert many.families[1].phases == ("prefill", "decode")
    assert many.score("attention_forward") == pytest.approx((0.4 + 0.005) / 2)


def test_an_operator_under_the_share_everywhere_keeps_its_heavier_phase():
    rows = {("chat", "prefill"): {"rms_norm": 1, "gemm": 999}, ("chat", "decode"): {"rms_norm": 2, "gemm": 998}}
    found = importance(table(rows), {"chat": 1.0}, min_share=0.5)
    assert found.score("rms_norm") == pytest.approx(0.002)


def test_weights_are_normalized_over_the_retained_operators():
    found = importance(table(TWO), HOURS, retained={"rms_norm", "attention_forward"})
    assert set(found.weights) == {"rms_norm", "attention_forward"}
    assert sum(found.weights.values()) == pytest.approx(1)
    assert found.score("paged_attention_decode") > 0


def test_card_hours_count_by_their_share_alone():
    tenfold = importance(table(TWO), {name: 10 * hours for name, hours in HOURS.items()})
    assert tenfold.weights == pytest.approx(importance(table(TWO), HOURS).weights)


@pytest.mark.parametrize("factor", [0.1, 3, 1000])
@pytest.mark.parametrize("app", ["chat", "search"])
def test_a_faster_clock_of_an_application_changes_nothing(app, factor):
    scaled = table(TWO).with_columns(ns=pl.when(pl.col("app") == app).then(pl.col("ns") * factor).otherwise("ns"))
    assert importance(scaled, HOURS).weights == pytest.approx(importance(table(TWO), HOURS).weights)


@pytest.mark.parametrize("part", [0.5, 0.1])
def test_an_application_in_two_parts_weighs_as_the_whole(part):
    split = {**{key: of for key, of in TWO.items() if key[0] != "chat"}}
    for name in ("chat-a", "chat-b"):
        split |= {(name, phase): of for (app, phase), of in TWO.items() if app == "chat"}
    hours = {"chat-a": 300 * part, "chat-b": 300 * (1 - part), "search": 100.0}
    assert importance(table(split), hours).weights == pytest.approx(importance(table(TWO), HOURS).weights)


def test_ranks_weigh_as_one_trace_with_all_of_them(tmp_path):
    """Two ranks of an application in two files and the same two devices in one file."""
    ranks = [scene.serving(), fleets.scaled(scene.serving(), 2)]
    merged = scene.Scene()
    for number, built in enumerate(ranks):
        for event in built.events:
            moved = {**event, "args": dict(event["args"])}
            if "correlation" in moved["args"]:
                moved["args"]["correlation"] += 1000 * number
            on_device = event["cat"] == "kernel"
            if on_device:
                moved["args"]["device"] = number
            moved["tid" if not on_device else "pid"] = 422 + number if not on_device else number
            merged.events.append(moved)
    found = []
    for name, scenes in (("apart", ranks), ("merged", [merged])):
        folder = tmp_path / name
        folder.mkdir()
        for i, built in enumerate(scenes):
            (folder / f"rank{i}.json").write_bytes(scene.render(built.events))
        path = fleets.document(
            folder / "fleet.yaml", {"applications": {"chat": {"card_hours": 1, "traces": ["*.json"]}}}
        )
        fleet = load_fleet(path)
        found.append(fleet_weights(fleet, gather(fleet, folder / "data", jobs=1)))
    assert found[0].weights == pytest.approx(found[1].weights)
    assert found[0].applications["chat"].ns == pytest.approx(found[1].applications["chat"].ns)


def weights_of(path, **options):
    fleet = load_fleet(path)
    return fleet_weights(fleet, gather(fleet, path.parent / "data", jobs=1), **options)


def test_scaling_the_clock_of_a_trace_changes_no_weight(tmp_path):
    plain = weights_of(fleets.write(tmp_path / "plain"))
    path = fleets.write(tmp_path / "scaled")
    (path.parent / "chat.json").write_bytes(scene.render(fleets.scaled(scene.serving(), 3).events))
    assert weights_of(path).weights == pytest.approx(plain.weights)


def test_mixed_steps_are_split_by_tokens_or_kept_apart(tmp_path):
    built = scene.serving()
    built.step("execute_context_2(48)_generation_16(16)", 64)
    path = fleets.write(tmp_path)
    (tmp_path / "chat.json").write_bytes(scene.render(built.events))
    step = sum(ns for *_, ns in scene.LAYER)
    split = weights_of(path).applications["chat"].ns
    assert split == pytest.approx({"prefill": step * 1.75, "decode": step * 2.25})
    kept = weights_of(path, mixed="keep")
    assert kept.applications["chat"].ns == pytest.approx({"prefill": step, "decode": 2 * step, "mixed": step})
    assert any("kept apart" in note for note in kept.notes)


def test_time_without_a_phase_is_told_and_counts_in_none(tmp_path):
    built = scene.serving()
    built.call(["aten::mm"], "nvjet_tst_64x8", sum(ns for *_, ns in scene.LAYER), None)
    path = fleets.write(tmp_path)
    (tmp_path / "chat.json").write_bytes(scene.render(_alone(built).events))
    found = weights_of(path)
    assert any("has no phase" in note for note in found.notes)


def _alone(built):
    """The last call on a thread of its own, so that no step stands around or before it."""
    last = max(e["ts"] for e in built.events if e["cat"] == "cpu_op")
    for event in built.events:
        if event["ts"] >= last and event["cat"] in ("cpu_op", "cuda_runtime"):
            event["tid"] = 999
    return built


def test_an_application_without_any_phase_is_refused(tmp_path):
    path = fleets.write(tmp_path)
    bare = scene.Scene()
    for module, ops, kernel, dur in scene.LAYER[:2]:
        bare.call(ops, kernel, dur, module)
    (tmp_path / "chat.json").write_bytes(scene.render(bare.events))
    with pytest.raises(UserError, match="application chat: no device time in any phase: give its traces a `phase`"):
        weights_of(path)
    hinted = fleets.write(tmp_path / "hinted", chat={"phase": "decode"})
    (tmp_path / "hinted" / "chat.json").write_bytes(scene.render(bare.events))
    assert weights_of(hinted).applications["chat"].phases == ["decode"]


def test_traces_that_did_not_change_are_not_imported_again(tmp_path):
    path = fleets.write(tmp_path)
    fleet = load_fleet(path)
    seen = []
    for _ in range(2):
        seen.append([])
        gather(fleet, tmp_path / "data", jobs=1, done=lambda r: seen[-1].append(r.trace))
    assert seen == [["chat-chat", "search-search"], []]
    (tmp_path / "chat.json").write_bytes(scene.render(fleets.searching().events))
    gather(fleet, tmp_path / "data", jobs=1, done=lambda r: seen[-1].append(r.trace))
    assert seen[-1] == ["chat-chat"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"card_hours": 0}, "applications.chat.card_hours: Input should be greater than 0"),
        ({"traces": []}, "applications.chat.traces: List should have at least 1 item"),
        ({"traces": ["nothing*.json"]}, "applications.chat.traces.0: no file matches 'nothing*.json'"),
        ({"colour": "red"}, "applications.chat.colour: Extra inputs are not permitted"),
        ({"framework": "vllm"}, "applications.chat.framework: 'vllm': expected NAME==VERSION"),
        ({"framework": "nothing==1"}, "framework nothing==1: no rules for nothing: expected one of aiter"),
        ({"chip": "H999"}, "applications.chat.chip: unknown chip 'H999': expected one of A100"),
        ({"typical": {"lunch": {}}}, "applications.chat.typical.lunch"),
        ({"typical": {"decode": {"requests": 0}}}, "applications.chat.typical.decode.requests: Input should be"),
    ],
)
def test_a_wrong_fleet_file_is_one_line_with_file_and_field(tmp_path, changes, said):
    path = fleets.write(tmp_path, chat=changes)
    with pytest.raises(UserError) as error:
        weights_of(path)
    assert said in str(error.value) and str(error.value).startswith(str(path)) and "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "said"), [("a: [", "not YAML"), ("[]", "expected a mapping"), ("{}", "applications")])
def test_a_file_that_is_no_fleet_is_one_line(tmp_path, text, said):
    (tmp_path / "fleet.yaml").write_text(text)
    with pytest.raises(UserError, match=said) as error:
        load_fleet(tmp_path / "fleet.yaml")
    assert "\n" not in str(error.value)


def test_the_written_weights_score_a_run(tmp_path):
    from typer.testing import CliRunner

    from atrex.cli.main import app
    from atrex.scoring.published import PUBLISHED_SHAPES
    from atrex.scoring.weights import read_weights

    out = tmp_path / "w.json"
    done = CliRunner().invoke(
        app,
        ["suite", "weights", "--fleet", str(fleets.write(tmp_path / "f")), "--out", str(out), "--json", "--jobs", "1"],
    )
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    read = read_weights(out, PUBLISHED_SHAPES)
    assert read.values == pytest.approx(document["weights"]) and sum(read.values.values()) == pytest.approx(1)
    assert document["mixed"] == "split" and document["time"] == "exclusive"
