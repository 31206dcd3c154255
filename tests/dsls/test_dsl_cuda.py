"""The CUDA C++ session on a library that nvcc built here: whose its kernels are follows from the library itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from atrex.dsls.cuda import find_nvcc
from atrex.dsls.elf import cubins, functions

pytestmark = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc: install the CUDA toolkit, or set CUDA_HOME")
ROOT = Path(__file__).parents[2]

KERNELS = """
#include <cuda_runtime.h>
namespace { __global__ void hidden(float* x) { x[threadIdx.x] = 1; } }
template <int N> __global__ void scaled(float* x) { x[threadIdx.x] *= N; }
extern "C" void launch(float* x) { hidden<<<1, 32>>>(x); scaled<3><<<1, 32>>>(x); }
"""

SCENARIO = """
import ctypes, json, sys
from pathlib import Path
from atrex import dsls
scratch = Path(sys.argv[1])
session = dsls.get("cuda").instrument(scratch, scratch / "candidate.py")
before = session.artifacts()
libraries = [ctypes.CDLL(str(path)) for path in sorted(scratch.glob("*.so"))]
print(json.dumps({"before": before, "artifacts": session.artifacts(), "missing": session.missing(),
                  "owners": {name: session.owner(name) for name in sys.argv[2:]}}))
"""

TORCH = "_ZN36_GLOBAL__N__5108fcc0_4_Sort_cu_c_sort11sort_kernelEPf"


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "k.cu").write_text(KERNELS)
    command = [find_nvcc(), "-shared", "-Xcompiler", "-fPIC", "-arch=sm_80", "-o", "k.so", "k.cu"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if built.returncode:
        pytest.skip(f"nvcc cannot link here: {built.stderr[:200]}")
    (folder / "host.cpp").write_text('extern "C" int answer() { return 42; }')
    subprocess.run(["g++", "-shared", "-fPIC", "host.cpp", "-o", "host.so"], cwd=folder, check=True)
    kernels = {name for code in cubins((folder / "k.so").read_bytes()) for name in functions(code)}
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    arguments = [sys.executable, "-c", SCENARIO, str(folder), *sorted(kernels), "launch", TORCH, "elsewhere"]
    done = subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"kernels": sorted(kernels)}


def test_a_library_s_cubins_name_its_kernels(seen):
    hidden, scaled = seen["kernels"]
    assert "hidden" in scaled + hidden and "scaledILi3E" in scaled + hidden


def test_kernels_in_the_candidate_s_library_are_the_target(seen):
    owners = seen["owners"]
    assert [owners[name] for name in seen["kernels"]] == ["target"] * 2
    assert owners[TORCH] == "torch" and owners["elsewhere"] == "unknown"
    assert owners["launch"] == "unknown"  # a function of the host


def test_libraries_with_device_code_are_the_artifacts(seen):
    assert seen["before"] == [] and seen["missing"] == []
    assert [(a["name"], a["kind"]) for a in seen["artifacts"]] == [("k.so", "so")]


ASIDE = """
import contextlib, json, sys
from pathlib import Path
from atrex import dsls
scratch = Path(sys.argv[1])
session = dsls.get("cuda").instrument(scratch, scratch / "candidate.py")
from torch.utils import cpp_extension
steps, library = [], scratch / "kept" / "answer.so"

@contextlib.contextmanager
def aside():
    steps.append("built" if library.exists() else "aside")
    yield
    steps.append("back" if library.exists() else "nothing built")

session.aside = aside
folder = scratch / "kept"
folder.mkdir()
cpp_extension.load("answer", [str(scratch / "host.cpp")], build_directory=str(folder), is_python_module=False)
session.close()
print(json.dumps({"steps": steps, "own": cpp_extension._write_ninja_file_and_build_library.__module__}))
"""


def test_the_device_is_left_to_others_while_a_library_is_built(tmp_path):
    (tmp_path / "host.cpp").write_text('extern "C" int answer() { return 42; }')
    command = [sys.executable, "-c", ASIDE, str(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen == {"steps": ["aside", "back"], "own": "torch.utils.cpp_extension"}
