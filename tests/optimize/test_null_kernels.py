"""Kernels of null campaigns: other binaries, the same values. And campaigns of them are counted as they ended."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
from pathlib import Path

import pytest
import torch

from atrex.problems.load import load_suite

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import null_campaigns
        import null_kernels

        yield null_kernels, null_campaigns
    finally:
        sys.path.remove(str(BENCHMARKS))


def load(source: str, folder: Path):
    folder.mkdir()
    (folder / "kernel.py").write_text(source)
    spec = importlib.util.spec_from_file_location(folder.name, folder / "kernel.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_cpp_kernels_differ_in_binary_and_agree_in_every_value(benchmark, tmp_path, monkeypatch):
    problem = load_suite(None).problem("rms_norm")
    torch.manual_seed(0)
    inputs = problem.make_inputs(problem.shape("15"), 0, torch.device("cpu"), "e4m3fn")
    outputs, binaries = [], set()
    for seed in range(4):
        cache = tmp_path / f"cache{seed}"
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(cache))
        model = load(benchmark[0].kernel("cpp", seed), tmp_path / f"k{seed}").Model(1e-6)
        outputs.append(model(**{name: value.clone() for name, value in inputs.items()}))
        (library,) = cache.glob("*.so")
        binaries.add(hashlib.sha256(library.read_bytes()).hexdigest())
    assert len(binaries) == 4
    assert all(torch.equal(outputs[0], each) for each in outputs[1:])
    expected = problem.reference(problem.shape("15"))(**inputs)
    torch.testing.assert_close(outputs[0], expected, rtol=0.01, atol=0.01)


def test_triton_kernels_are_candidates_with_the_same_operations_in_other_words(benchmark):
    sources = [benchmark[0].kernel("triton", seed) for seed in range(6)]
    assert len(set(sources)) == 6
    for source in sources:
        compile(source, "kernel.py", "exec")
    assert len({(source.count("tl.load"), source.count("tl.store"), source.count("tl.sum")) for source in sources}) == 1


def test_a_seed_draws_the_same_kernel(benchmark):
    assert benchmark[0].kernel("cpp", 5) == benchmark[0].kernel("cpp", 5)


def decision(why="futile", rounds=8):
    return {"why": why, "rounds": rounds, "units": 2 * rounds, "seconds": 1.0}


def test_only_campaigns_that_are_over_are_counted(benchmark):
    runs = [
        {"promoted": False, "decisions": [decision()] * 3, "binaries": {"a": ["1"], "b": ["2"]}},
        {"promoted": True, "decisions": [decision("faster")], "binaries": {"c": ["3"], "d": ["3"]}},
        {"promoted": False, "decisions": [decision()], "binaries": {}},
    ]
    found = benchmark[1].summary(runs, 3)
    assert (found["campaigns"], found["promoting_anything"], found["decisions"]) == (2, 1, 4)
    assert found["ended"] == {"faster": 1, "futile": 3}
    assert (found["kernels"], found["different_binaries"]) == (4, 3)
