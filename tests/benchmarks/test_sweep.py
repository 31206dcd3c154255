"""The sweep of variants, on the CPU: an honest C++ kernel and variants of it that are wrong, raise, hang and die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.kernel_files import kernel_file
from benchmarks.sweep import Queue, Unit, read_spec

from atrex.problems.load import load_suite

ROOT = Path(__file__).parents[2]
SWEEP = ROOT / "benchmarks" / "sweep.py"
FIRST = "        rows, hidden = x.shape\n"
VARIANTS = {
    "wrong": [["/ float(hidden) + eps", "/ float(hidden) + 1.0f"]],
    "raising": [[FIRST, FIRST + "        raise RuntimeError('no such luck')\n"]],
    "hanging": [[FIRST, FIRST + "        while True:\n            pass\n"]],
    "dying": {"replace": [[FIRST, FIRST + "        ctypes.string_at(0)\n"]], "shapes": [0]},
    "more-threads": [["x.numel() > 32768", "x.numel() > 16384"]],
    "other": {"file": "other.py"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """kernels/ and results/ of one operator, whose kernel is the C++ example."""
    text = (ROOT / "examples" / "candidates" / "cpp" / "rms_norm.py").read_text()
    for place in ("kernels/h200/rms_norm.py", "results/vanilla/triton/rms_norm.py", "other.py"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    specify(tmp_path, {"shapes": [0, "1"], "variants": VARIANTS})
    return tmp_path


def specify(root: Path, spec: dict) -> None:
    (root / "kernels" / "sweeps").mkdir(exist_ok=True)
    (root / "kernels" / "sweeps" / "rms_norm.json").write_text(json.dumps(spec))


def sweep(root: Path, *arguments: str) -> subprocess.CompletedProcess:
    env = os.environ | {"TORCH_EXTENSIONS_DIR": str(root / "built"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SWEEP), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=280)


def rows(path: Path) -> dict[tuple[str, str], dict]:
    return {(row["label"], row["shape"]): row for row in json.loads(path.read_text())["rows"]}


@pytest.mark.slow
def test_every_variant_gets_its_verdict_and_none_takes_the_sweep_down(root: Path):
    out = root / "out" / "sweep.json"
    done = sweep(root, "--device", "cpu", "--jobs", "2", "--patience", "5", "--seconds", "250", "--out", str(out))
    assert done.returncode == 0, done.stderr
    found, record = rows(out), json.loads(out.read_text())
    assert record["finished"] and record["planned"] == len(found) == 15
    for label in ("base", "vanilla", "more-threads", "other"):
        for shape in ("0", "1"):
            assert found[label, shape]["status"] == "passed", found[label, shape]
            assert found[label, shape]["us"] > 0 and found[label, shape]["S"] > 0
    assert found["wrong", "0"]["status"] == "failed" and "expected" in found["wrong", "0"]["detail"]
    assert found["raising", "1"]["status"] == "raised" and "no such luck" in found["raising", "1"]["detail"]
    assert found["dying", "0"]["status"] == "died" and ("dying", "1") not in found
    hanging = sorted(found["hanging", shape]["status"] for shape in ("0", "1"))
    assert hanging in (["hung", "hung"], ["hung", "left out"])
    assert [row["label"] for row in record["rows"]][:2] == ["base", "base"]
    assert "rms_norm" in done.stdout and "median S" in done.stdout


@pytest.mark.slow
def test_shapes_and_labels_narrow_it_and_the_time_ends_it(root: Path):
    variants = VARIANTS | {"slow": [["LIBRARY = build()", "import time\n\ntime.sleep(900)"]]}
    specify(root, {"shapes": [0, 1], "variants": variants})
    out = root / "sweep.json"
    options = ("--device", "cpu", "--jobs", "1", "--out", str(out))
    done = sweep(root, "rms_norm", *options, "--shapes", "1", "--labels", "base,slow", "--seconds", "30")
    assert done.returncode == 0, done.stderr
    assert list(rows(out)) == [("base", "1")]
    assert "not finished" in done.stdout and not json.loads(out.read_text())["finished"]


def test_the_check_names_file_label_and_text(root: Path):
    specify(root, {"shapes": [0], "variants": {"absent": [["no such text", ""]], "twice": [["rows", "r"]]}})
    done = sweep(root, "--check")
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert "kernels/h200/rms_norm.py" in lines[0] and "absent: 0 times" in lines[0] and "no such text" in lines[0]
    assert "twice: " in lines[1]


@pytest.mark.parametrize("variants, wrong", [
    ({"syntax": [[FIRST, "("]]}, "syntax: "),
    ({"away": {"file": "nowhere.py"}}, "away: "),
    ({"option": {"replaced": []}}, "option: unknown replaced"),
    ({"elsewhere": {"replace": [], "shapes": [7]}}, "elsewhere: shapes that the spec does not list: 7"),
])  # fmt: skip
def test_a_variant_that_cannot_be_made_is_named_and_left_out(root: Path, variants: dict, wrong: str):
    specify(root, {"shapes": [0], "variants": variants})
    spec = read_spec(root, "rms_norm", load_suite().problem("rms_norm"))
    assert len(spec.wrong) == 1 and wrong in spec.wrong[0]
    assert list(spec.variants) == ["base", "vanilla"]


def test_all_specs_of_the_project_fit_its_kernels():
    done = subprocess.run([sys.executable, str(SWEEP), "--check"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    specs = {path.stem for path in (ROOT / "kernels" / "sweeps").glob("*.json")}
    assert specs == set(load_suite().problems) and all(kernel_file(operator).exists() for operator in specs)


def test_base_comes_first_everywhere_and_processes_keep_to_their_pairs():
    labels = ("base", "a", "b")
    queue = Queue(Unit(operator, shape, label) for operator in "xy" for shape in "01" for label in labels)
    given = [(process, queue.next(process)) for process in (0, 1, 0, 1)]
    assert all(unit.label == "base" for _, unit in given)
    assert {process: {unit.operator for p, unit in given if p == process} for process in (0, 1)} == {0: {"x"}, 1: {"y"}}
    own = [queue.next(0) for _ in range(4)]
    assert [unit.label for unit in own] == ["a", "a", "b", "b"] and {unit.operator for unit in own} == {"x"}
    assert queue.next(0).operator == "y"  # nothing of its own is left: it takes a share of the other's
    assert queue.drop("y", "b") == [Unit("y", "0", "b"), Unit("y", "1", "b")]
    assert queue.next(1).label == "a" and queue.next(1) is None
