"""The Triton session on a driver without a device: real compilation for sm_90, real launch path, no launch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
HERE = Path(__file__).parent

OTHER = """
import triton, triton.language as tl
@triton.jit
def helper_kernel(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, N), 2.0)
"""

CANDIDATE = """
import sys, torch, triton, triton.language as tl
sys.path.insert(0, {folder!r})
from other import helper_kernel

@triton.autotune([triton.Config({{"N": 64}})], key=[])
@triton.jit
def tuned_kernel(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, N), 1.0)

@triton.jit
def plain_kernel(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, N), 1.0)

@triton.jit
def warm_only_kernel(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, N), 3.0)

def forward():
    x = torch.zeros(128)
    warm_only_kernel.warmup(x, N=16, grid=(1,))
    tuned_kernel[(1,)](x)
    for n in (32, 64, 64):
        plain_kernel[(1,)](x, N=n)
    helper_kernel[(1,)](x, N=128)
"""


def run(scenario, *arguments, **environment):
    root = HERE.parents[1]
    env = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{HERE}", **environment}
    command = [sys.executable, "-c", scenario, *map(str, arguments)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def candidate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("triton")
    (folder / "other.py").write_text(OTHER)
    file = folder / "candidate.py"
    file.write_text(CANDIDATE.format(folder=str(folder)))
    return file


@pytest.fixture(scope="module")
def seen(candidate):
    return run(SCENARIO, candidate)


SCENARIO = """
import json, os, stub_gpu, sys
from triton import knobs
watch, module = stub_gpu.session(sys.argv[1])
before = watch.artifacts()
module.forward()
idle = knobs.runtime.launch_enter_hook.calls == [] if hasattr(knobs.runtime.launch_enter_hook, "calls") else True
names = ["tuned_kernel", "plain_kernel", "helper_kernel", "warm_only_kernel"]
caches = [p for p in os.listdir(watch.env()["TRITON_CACHE_DIR"])]
print(json.dumps({"before": before, "artifacts": watch.artifacts(), "missing": watch.missing(), "idle": idle,
                  "owners": {n: watch.owner(n) for n in names}, "caches": len(caches)}))
"""


def test_every_launched_specialization_of_the_candidate_has_its_cubin(seen):
    assert seen["before"] == [] and seen["missing"] == []
    assert sorted(a["name"] for a in seen["artifacts"]) == ["plain_kernel", "plain_kernel", "tuned_kernel"]
    assert all(a["kind"] == "cubin" and a["bytes"] > 1000 and len(a["sha256"]) == 64 for a in seen["artifacts"])


def test_kernels_belong_to_whoever_wrote_them(seen):
    owners = seen["owners"]
    assert owners["plain_kernel"] == owners["tuned_kernel"] == "target"
    assert owners["helper_kernel"] == "dsl"
    assert owners["warm_only_kernel"] == "unknown"


def test_warm_launches_carry_no_hook_and_caches_are_private(seen):
    assert seen["idle"] and seen["caches"] > 0


TWICE = """
import json, os, stub_gpu, sys
watch, module = stub_gpu.session(sys.argv[1])
cache = watch.env()["TRITON_CACHE_DIR"]
module.forward()
first = watch.artifacts()
watch.close()
watch, module = stub_gpu.session(sys.argv[1])
os.environ["TRITON_CACHE_DIR"] = cache
stamp = {p: os.stat(os.path.join(cache, p)).st_mtime_ns for p in os.listdir(cache)}
module.forward()
same = stamp == {p: os.stat(os.path.join(cache, p)).st_mtime_ns for p in os.listdir(cache)}
print(json.dumps({"first": first, "second": watch.artifacts(), "from_cache": same}))
"""


def test_kernels_served_from_the_disk_cache_are_seen(candidate):
    seen = run(TWICE, candidate)
    assert seen["from_cache"]
    assert seen["first"] == seen["second"] != []


INTERPRETED = """
import json, stub_gpu, sys
watch, module = stub_gpu.session(sys.argv[1])
module.forward()
print(json.dumps({"missing": watch.missing(), "artifacts": watch.artifacts()}))
"""

INTERPRETED_CANDIDATE = """
import torch, triton, triton.language as tl
@triton.jit
def plain_kernel(x_ptr, N: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, N), 1.0)

def forward():
    x = torch.zeros(128)
    plain_kernel[(1,)](x, N=32)
"""


def test_an_interpreted_kernel_is_a_launch_without_an_artifact(tmp_path):
    file = tmp_path / "candidate.py"
    file.write_text(INTERPRETED_CANDIDATE)
    seen = run(INTERPRETED, file, TRITON_INTERPRET="1")
    assert seen == {"missing": ["plain_kernel"], "artifacts": []}


ASIDE = """
import contextlib, json, os, stub_gpu, sys
import triton
watch, module = stub_gpu.session(sys.argv[1])
steps = []

@contextlib.contextmanager
def aside():
    launched = len(watch.artifacts())
    steps.append("aside")
    yield
    steps.append("back" if len(watch.artifacts()) == launched else "launched meanwhile")

watch.aside = aside
module.forward()
cold = len(steps)
module.forward()
watch.close()
print(json.dumps({"steps": steps, "cold": cold, "own": triton.compiler.compile.__module__}))
"""


def test_the_device_is_left_to_others_while_a_kernel_is_compiled_and_only_then(candidate):
    seen = run(ASIDE, candidate)
    assert seen["steps"] == ["aside", "back"] * 5  # warm_only, tuned, plain twice, the imported one
    assert seen["cold"] == 10
    assert seen["own"] == "triton.compiler.compiler"
