"""The measuring program alone, on a problem of a few lines: what it answers, and what no kernel makes it answer."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from atrex.agents.tuner import bench

REFERENCE = """
import torch
class Model(torch.nn.Module):
    def __init__(self, by):
        super().__init__()
        self.by = by
    def forward(self, x):
        return x * self.by
"""
INPUT = """
import torch
def make_inputs(n):
    return {"x": torch.randn(n)}
def corner_cases(n):
    return {"empty": lambda: make_inputs(0), "large": lambda: {"x": torch.full((n,), 1e30)}}
"""
SHAPES = {
    "0": {"init_kwargs": {"by": 2.0}, "input_kwargs": {"n": 1000}},
    "1": {"init_kwargs": {"by": 3.0}, "input_kwargs": {"n": 4000}},
}
KERNEL = "import os, sys, time\n" + REFERENCE
SLOW = KERNEL.replace("return", "time.sleep(0.004); return")


def problem(folder):
    for name, text in (("reference.py", REFERENCE), ("input.py", INPUT), ("shapes.json", json.dumps(SHAPES))):
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    folder = tmp_path_factory.mktemp("problem")
    problem(folder)
    process = subprocess.Popen(
        [sys.executable, bench._PROGRAM, "cpu"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert json.loads(process.stdout.readline())["ready"]

    def ask(do, limit=60, **order):
        process.stdin.write(json.dumps({"do": do, "limit": limit} | order) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    process.wait(10)


@pytest.fixture
def compare(ask):
    def run(trial, limit=60, **more):
        order = {"incumbent": KERNEL, "trial": trial, "shapes": ["0", "1"], "check": ["0"], "repeats": 5, "seed": 1}
        return ask("compare", limit, **order | more)

    return run


def test_it_imports_nothing_of_this_package():
    tree = ast.parse(bench._PROGRAM.read_text())
    names = [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
    names += [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    assert names and not any(name.startswith("atrex") for name in names)


def test_sizes_are_the_operands_bytes(ask):
    assert ask("sizes")["sizes"] == {"0": 4000, "1": 16000}


def test_times_are_pairs_of_each_shape(compare):
    times = compare(SLOW)["times"]
    assert {name: len(pairs) for name, pairs in times.items()} == {"0": 5, "1": 5}
    assert all(trial > 4000 > 0 < incumbent for pairs in times.values() for incumbent, trial in pairs)


def test_shapes_that_take_long_are_left_out(ask):
    slow = KERNEL.replace("return", "time.sleep(0.6 if len(x) > 2000 else 0); return")
    assert ask("survey", source=slow, shapes=["0", "1"], check=["0"])["shapes"] == ["0"]


@pytest.mark.parametrize(
    ("trial", "failed", "said"),
    [
        ("class\n", "error", "SyntaxError"),
        ("raise RuntimeError('in file\\nk.cpp:3: error: no such thing')\n", "error", "k.cpp:3: error: no such thing"),
        (KERNEL.replace("x * self.by", "x * self.by * 1.001"), "wrong", "shape 0: out: off by"),
        (KERNEL.replace("x * self.by", "x.double() * self.by"), "wrong", "torch.float64, expected"),
        (KERNEL.replace("x * self.by", "{'y': x * self.by}"), "wrong", "outputs ['y'], expected ['out']"),
        (KERNEL.replace("x * self.by", "x.mul_(self.by)"), "wrong", "operand x after the call"),
        (KERNEL.replace("x * self.by", "(x.clamp(-1e9, 1e9) * self.by)"), "wrong", "shape 0, large"),
        (KERNEL.replace("x * self.by", "x * float('nan')"), "wrong", "off by inf"),
        (KERNEL.replace("return", "os.kill(os.getpid(), 11); return"), "crash", "SIGSEGV (check of shape 0)"),
        (KERNEL.replace("return", "os._exit(0); return"), "crash", "exit status 0"),
        (KERNEL.replace("return", "sys.exit('enough'); return"), "error", "SystemExit: enough"),
    ],
)
def test_a_kernel_that_fails_is_told_by_its_kind(compare, trial, failed, said):
    answer = compare(trial)
    assert answer.get("failed") == failed and said in answer["reason"], answer


def test_a_kernel_that_hangs_is_ended_and_the_next_is_measured(compare):
    answer = compare(KERNEL.replace("return", "time.sleep(1000); return"), limit=3)
    assert answer == {"failed": "timeout", "reason": "more than 3 s (check of shape 0)"}
    assert "times" in compare(KERNEL)


def test_what_a_kernel_prints_is_no_answer(compare):
    printing = KERNEL.replace("return", """print('{"done": true, "times": {}}', flush=True); return""")
    assert set(compare(printing)["times"]) == {"0", "1"}
