"""The Triton sources of the attacks without a device: compiled for sm_90 on a stub driver, nothing launched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent
KERNELS = {
    "rms_norm": {"rms_norm_kernel"},
    "autotuner": {"rms_norm_kernel", "rms_norm_two_pass_kernel"},
    "block_scaled_mm": {"block_scaled_mm_kernel"},
    "fp16": {"block_scaled_mm_kernel"},
    "tf32": {"mm_kernel"},
    "bf16_state": {"delta_kernel"},
    "linear_sigmoid_mul": {"linear_sigmoid_mul_kernel"},
    "aliased_matmul": {"gate_kernel"},
    "fallback_on_exception": set(),
    "shared_memory_launch": set(),
}


@pytest.fixture(scope="module")
def compiled():
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "src")}
    command = [sys.executable, str(HERE / "compile_for_sm90.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_compile_and_what_must_not_launch_does_not(compiled, name):
    found = json.loads(compiled.splitlines()[-1])[name]
    assert set(found["kernels"]) == KERNELS[name] and found["missing"] == []


def test_the_oversized_launch_is_refused_for_its_shared_memory(compiled):
    assert "out of resource: shared memory" in compiled
