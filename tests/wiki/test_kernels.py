"""Kernel cards against records: what the judge or the compile gate did not say is refused."""

import hashlib
import json

import pytest

from atrex.errors import UserError
from atrex.wiki import kernels
from atrex.wiki.kernels import check_kernel, unlisted_kernels
from atrex.wiki.load import Wiki, load_wiki, parse_card

SOURCE = b"import triton\n\nclass Model: ...\n"
SHA = hashlib.sha256(SOURCE).hexdigest()
SHAPES = kernels._shapes("l2_norm")
CARD = """---
id: kernel-l2-norm
kind: kernel
title: Rows of l2_norm in registers
vendor: nvidia
arch: [{arch}]
dsl: [triton]
operators: [l2_norm]
kernel: examples/candidates/triton/l2_norm.py
sources: [{{title: A page, where: "https://example.org/a", date: 2026-01-02}}]
verified:
  - {{level: {level}, record: {record}, chip: {chip}, sha256: {sha}, date: 2026-01-02{more}}}
---

text
"""


def unit(shape, **changed):
    return {
        "candidate": "k.py", "candidate_sha256": SHA, "operator": "l2_norm", "shape": shape, "chip": "H200",
        "dsl": "triton", "held_out": shape.startswith("h"), "verdict": {"status": "passed"},
        "performance": {"median_us": 1.0}, "adoption": {"share": 1.0}, "origin": "published", "roofline": {"S": 0.5},
    } | changed  # fmt: skip


@pytest.fixture
def root(tmp_path):
    (tmp_path / "examples" / "candidates" / "triton").mkdir(parents=True)
    (tmp_path / "examples" / "candidates" / "triton" / "l2_norm.py").write_bytes(SOURCE)
    (tmp_path / "results").mkdir()
    return tmp_path


def measured(root, units, closed=True, **changed):
    folder = root / "results" / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"closed": closed}))
    (folder / "units.jsonl").write_text("".join(json.dumps(one) + "\n" for one in units))
    values = {"arch": "sm_90", "level": "measured", "record": "results/run", "chip": "H200", "sha": SHA}
    return said(root, CARD.format(**values | {"more": ", S: 0.5"} | changed))


def compiled(root, row, wiki=None, **changed):
    (root / "results" / "compile.json").write_text(json.dumps({"candidates": [row]}))
    values = {"arch": "gfx942", "level": "compiled", "record": "results/compile.json", "chip": "gfx942", "sha": SHA}
    return said(root, CARD.format(**values | {"more": ", twin: kernel-rms-norm-triton"} | changed), wiki)


def said(root, text, wiki=None):
    card = parse_card(text, "card.md")
    return [f"{field}: {message}" for field, message in check_kernel(card, wiki or load_wiki(), root)]


def test_a_kernel_that_passed_everything_is_accepted(root):
    assert measured(root, [unit(shape) for shape in [*SHAPES, "h0", "h1"]]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda units: units[:-1], "without shapes"),
        (lambda units: [*units[:-1], units[-1] | {"verdict": {"status": "failed"}}], "did not pass shapes"),
        (lambda units: [*units, unit("h0", verdict={"status": "error"})], "did not pass shapes h0"),
        (lambda units: [one | {"candidate_sha256": "0" * 64} for one in units], "judged no file of this content"),
        (lambda units: [one | {"operator": "rms_norm"} for one in units], "judged no file of this content"),
        (lambda units: [one | {"chip": "H100"} for one in units], "judged on H100, not on H200"),
        (lambda units: [one | {"dsl": "gluon"} for one in units], "judged as gluon"),
        (lambda units: [*units[:-1], units[-1] | {"adoption": {"share": 0.2}}], "does not do most"),
        (lambda units: [*units[:-1], units[-1] | {"adoption": None}], "does not do most"),
    ],
)
def test_a_record_that_does_not_hold_the_claim_up_is_refused(root, change, message):
    found = measured(root, change([unit(shape) for shape in SHAPES]))
    assert any(message in line for line in found), found


def test_a_score_that_is_not_the_records_is_refused(root):
    units = [unit(shape, roofline={"S": 0.1 + 0.01 * i}) for i, shape in enumerate(SHAPES)]
    (said_of_it,) = measured(root, units)
    assert said_of_it == f"verified.1: S: 0.5; results/run has {0.1 + 0.005 * (len(SHAPES) - 1):.3f}"


def test_a_card_without_a_score_is_refused(root):
    assert measured(root, [unit(shape) for shape in SHAPES], more="") == ["verified.1: S: None; results/run has 0.500"]


def test_an_unfinished_run_is_no_record(root):
    assert any("not finished" in line for line in measured(root, [unit(s) for s in SHAPES], closed=False))


def test_a_file_that_has_changed_since_is_refused(root):
    assert any("sha256 is not that of" in line for line in measured(root, [unit(s) for s in SHAPES], sha="ab" * 32))


def test_the_architecture_is_that_of_the_record(root):
    found = measured(root, [unit(s) for s in SHAPES], arch="sm_100")
    assert any("the records are of sm_90" in line for line in found)


ROW = {
    "candidate": "k.py", "sha256": SHA, "operator": "l2_norm", "dsl": "triton", "target": "gfx942",
    "shapes": {"compiled": len(SHAPES), "failed": 0, "undetermined": 0},
}  # fmt: skip


def test_a_compiled_kernel_with_a_measured_twin_is_accepted(root):
    assert compiled(root, ROW) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW | {"shapes": {"compiled": len(SHAPES) - 1, "failed": 0, "undetermined": 1}}, "shapes compiled for gfx942"),
        (ROW | {"sha256": None}, "has no file of this content"),
        (ROW | {"target": "sm_90a"}, "has no file of this content"),
    ],
)
def test_a_compile_record_that_lacks_something_is_refused(root, row, message):
    assert any(message in line for line in compiled(root, row))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("", "names a measured kernel"),
        (", twin: kernel-rms-norm-flydsl", "is no kernel that was measured"),
        (", twin: tests/nothing.py", "neither a card nor a test"),
        (", twin: tests/../results/run", "neither a card nor a test"),
    ],
)
def test_a_compiled_kernel_needs_a_twin_that_runs(root, more, message):
    assert any(message in line for line in compiled(root, ROW, more=more))


def test_a_kernel_without_any_record_is_no_card():
    text = CARD.format(arch="sm_90", level="measured", record="results/run", chip="H200", sha=SHA, more="")
    front, _, body = text.partition("verified:")
    with pytest.raises(UserError, match="a kernel has verified"):
        parse_card(front + body[body.index("---") :], "card.md")


def test_a_kernel_file_without_a_card_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "KERNELS", tmp_path)
    (tmp_path / "rms_norm").mkdir()
    (tmp_path / "rms_norm" / "fast.py").write_bytes(SOURCE)
    assert [name for name, _ in unlisted_kernels(Wiki({}))] == ["rms_norm/fast.py"]
