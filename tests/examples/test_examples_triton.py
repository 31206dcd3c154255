"""The Triton examples without a device: values in Triton's interpreter, compilation for sm_90 on a stub driver."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "candidates" / "triton"
OPERATORS = sorted(path.stem for path in FOLDER.glob("*.py"))


def run(script, *arguments, **environment):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    done = subprocess.run([sys.executable, script, *map(str, arguments)], env=env, capture_output=True, text=True,
                          timeout=250)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def errors():
    return run(ROOT / "tests" / "examples" / "interpret_examples.py", FOLDER, TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    scratch = tmp_path_factory.mktemp("stub")
    return run(ROOT / "tests" / "dsls" / "stub_gpu.py", "examples", FOLDER, STUB_SCRATCH=str(scratch))


@pytest.mark.parametrize("operator", OPERATORS)
def test_values_agree_with_torch(errors, operator):
    # Relative to |expected| + 0.1, so fp16 rounding (2^-11 of the value, twice for attention) stays below 2e-3.
    assert errors[operator] and max(errors[operator]) < 2e-3


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_launched_kernel_compiles_for_sm_90(compiled, operator):
    assert compiled[operator]["missing"] == []
    assert {a["kind"] for a in compiled[operator]["artifacts"]} == {"cubin"}
    # One specialization at least for each of the shapes tried, since each takes another tile.
    assert len(compiled[operator]["artifacts"]) >= 2
