"""What changed from one suite to the next."""

import json
import shutil

import pytest

pytest.importorskip("polars")

from atrex.problems.diff import diff_suites
from atrex.problems.load import SHIPPED, load_suite
from tests.traces import fleets, scene
from tests.traces.test_build import fleet, run


def build(folder, *steps, search=True, hours=300):
    """A suite of the small fleet; `steps` (name, tokens, factor) replace what its chat does."""
    path = fleet(folder, chat={"card_hours": hours})
    if steps:
        built = scene.Scene()
        for name, tokens, factor in steps:
            fleets.step(built, name, tokens, factor)
        (folder / "chat.json").write_bytes(scene.render(built.events))
    if not search:
        (folder / "search.json").write_bytes((folder / "chat.json").read_bytes())
    run("build", "--fleet", path, "--out", folder / "suite", "--jobs", 1)
    return load_suite(folder / "suite")


DECODE, PROMPT = "execute_context_0(0)_generation_16(16)", "execute_context_1(512)_generation_0(0)"


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    return build(tmp_path_factory.mktemp("old"), (PROMPT, 512, 1), (DECODE, 16, 1))


def test_a_suite_is_the_same_as_itself(old):
    assert diff_suites(old, old).same
    assert "nothing changed" in run("diff", old.folder, old.folder)


def test_operators_shapes_and_weights_that_vanish_are_told(old, tmp_path):
    new = build(tmp_path, (PROMPT, 512, 1), search=False)
    found = diff_suites(old, new)
    assert found.vanished == ["paged_attention_decode"] and found.appeared == []
    assert ("paged_attention_decode", "0") in found.gone_shapes
    gone = {old.problem(o).shapes[s].input_kwargs["token_count"] for o, s in found.gone_shapes if o == "rms_norm"}
    assert gone == {16, 4096} and not found.new_shapes
    assert found.weights["paged_attention_decode"] == (old.weights["paged_attention_decode"], None)
    assert diff_suites(new, old).appeared == ["paged_attention_decode"]


def test_a_shape_that_moves_inside_its_bucket_is_the_same_shape(old, tmp_path):
    new = build(tmp_path, ("execute_context_1(400)_generation_0(0)", 400, 3), (DECODE, 16, 1))
    moved = {m.operator: m for m in diff_suites(old, new).moved_shapes}["rms_norm"]
    assert moved.kwargs == {"token_count": [512, 400]}
    assert moved.us["H200"] == pytest.approx([2.301, 3 * 2.301])
    assert "rms_norm" not in {operator for operator, _ in diff_suites(old, new).new_shapes}


def test_small_moves_are_left_out(old, tmp_path):
    new = build(tmp_path, (PROMPT, 512, 1), (DECODE, 16, 1), (DECODE, 16, 2), hours=900)
    everything, large = diff_suites(old, new), diff_suites(old, new, min_move=1.0, min_time=10.0)
    assert everything.moved_shapes and everything.weights
    assert not large.moved_shapes and not large.weights


def test_shapes_of_the_shipped_suite_are_the_same_only_as_their_equals(tmp_path):
    shutil.copytree(SHIPPED / "rms_norm", tmp_path / "rms_norm")
    shapes = json.loads((tmp_path / "rms_norm" / "shapes.json").read_text())
    shapes["0"]["input_kwargs"]["token_count"] += 1
    (tmp_path / "rms_norm" / "shapes.json").write_text(json.dumps(shapes))
    from atrex.problems.generate import generate_roofline

    generate_roofline(tmp_path / "rms_norm")
    found = diff_suites(load_suite(SHIPPED / "rms_norm"), load_suite(tmp_path / "rms_norm"))
    assert found.gone_shapes == [("rms_norm", "0")] and found.new_shapes == [("rms_norm", "0")]
    assert not found.moved_shapes


def test_the_command_prints_a_line_for_each_change(old, tmp_path):
    new = build(tmp_path, ("execute_context_1(400)_generation_0(0)", 400, 3), (DECODE, 64, 1))
    out = run("diff", old.folder, new.folder)
    assert "~ rms_norm" in out and "token_count 512 -> 400" in out and "us on H200" in out
    document = json.loads(run("diff", old.folder, new.folder, "--json"))
    assert not document["same"] and document["moved_shapes"]
