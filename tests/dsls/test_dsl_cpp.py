import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRELUDE = """
import ctypes, json, os, sys, time
from pathlib import Path
import torch
import torch.utils.cpp_extension
from atrex import dsls
torch.set_num_threads(1)
scratch = Path(sys.argv[1])
watch = dsls.get("cpp").instrument(scratch, scratch / "candidate.py")
from torch.utils.cpp_extension import load
def build(name, text, **options):
    source = scratch / f"{name}.cpp"
    source.write_text(text)
    return load(name, [str(source)], extra_cflags=["-O2"], **options)
SPIN = '#include <chrono>\\nstatic void spin(long us) { auto end = std::chrono::steady_clock::now() + ' \\
       'std::chrono::microseconds(us); while (std::chrono::steady_clock::now() < end); }\\n'
def share(rows):
    total = sum(row["us"] for row in rows)
    return sum(row["us"] for row in rows if row["owner"] == "target") / total
"""


def run(body, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", PRELUDE + body, str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_half_torch_half_library_is_half_adopted(tmp_path):
    seen = run(
        """
library = ctypes.CDLL(build("k", SPIN + 'extern "C" void work(long us) { spin(us); }', is_python_module=False))
library.work.argtypes = [ctypes.c_long]
x = torch.randn(1 << 21)
torch.sin(x)
def forward(us):
    start = time.perf_counter()
    y = torch.empty_like(x).copy_(x)
    torch.sin(y.view(-1), out=y)
    aten = (time.perf_counter() - start) * 1e6
    library.work(us if us is not None else int(aten))
    return aten
forward(0)
watch.adoption_begin()
for _ in range(5):
    forward(None)
half = watch.adoption_end()
watch.adoption_begin()
library.work(2000)
whole = watch.adoption_end()
print(json.dumps({"half": share(half), "whole": whole, "artifacts": watch.artifacts(), "missing": watch.missing(),
                  "names": sorted(row["name"] for row in half)}))
""",
        tmp_path,
    )
    # Wide, because the library spins for the wall time that ATen took, which other load on the machine stretches.
    assert 0.3 < seen["half"] < 0.7
    assert [(row["name"], row["owner"]) for row in seen["whole"]] == [("k.so:work", "target")]
    assert 2000 <= seen["whole"][0]["us"] < 20000
    assert [(a["name"], a["kind"]) for a in seen["artifacts"]] == [("k.so", "so")] and seen["missing"] == []
    assert "aten::empty_like" not in seen["names"] and "aten::view" not in seen["names"]


def test_functions_of_an_extension_module_are_the_target_s(tmp_path):
    rows = run(
        """
module = build("m", "#include <Python.h>\\n" + SPIN + '''
static PyObject* work(PyObject*, PyObject*) { spin(1000); Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"work", work, METH_NOARGS, 0}, {0, 0, 0, 0}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "m", 0, -1, methods};
PyMODINIT_FUNC PyInit_m() { return PyModule_Create(&definition); }
''')
work = module.work
work()
watch.adoption_begin()
work()
print(json.dumps(watch.adoption_end()))
""",
        tmp_path,
    )
    assert [(row["name"], row["owner"]) for row in rows] == [("m.so:work", "target")] and rows[0]["us"] >= 1000


@pytest.mark.slow
def test_aten_inside_a_library_s_operator_is_torch_s(tmp_path):
    seen = run(
        """
build("op", SPIN + '''
#include <torch/library.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/sin.h>
at::Tensor half(const at::Tensor& x) { auto y = at::sin(x); spin(3000); return y; }
TORCH_LIBRARY(mine, m) { m.def("composite(Tensor x) -> Tensor", &half); m.def("cpu(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("cpu", &half); }
''', is_python_module=False)
x = torch.randn(1 << 18)
rows = {}
for name in ("composite", "cpu"):
    getattr(torch.ops.mine, name)(x)
    watch.adoption_begin()
    getattr(torch.ops.mine, name)(x)
    rows[name] = {row["name"]: [row["us"], row["owner"]] for row in watch.adoption_end()}
print(json.dumps(rows))
""",
        tmp_path,
    )
    for name, rows in seen.items():
        assert rows["aten::sin"][1] == "torch" and rows["aten::sin"][0] > 100
        assert rows[f"mine::{name}"][1] == "target" and rows[f"mine::{name}"][0] >= 3000


def test_a_prebuilt_library_is_not_the_target_s(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    seen = run(
        """
import shutil
built = build("k", 'extern "C" int answer() { return 42; }', is_python_module=False)
outside = scratch.parent / f"{scratch.name}-outside.so"
shutil.copy(built, outside)
library = ctypes.CDLL(str(outside))
watch.adoption_begin()
answer = library.answer()
rows = watch.adoption_end()
outside.unlink()
print(json.dumps({"answer": answer, "owners": [row["owner"] for row in rows]}))
""",
        tmp_path,
    )
    assert seen == {"answer": 42, "owners": ["unknown"]}


def test_calls_outside_a_measurement_cost_next_to_nothing(tmp_path):
    seen = run(
        """
library = ctypes.CDLL(build("k", 'extern "C" void nothing() {}', is_python_module=False))
nothing = library.nothing
def cost(n=20000):
    best = 1e9
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(n):
            nothing()
        best = min(best, (time.perf_counter() - start) / n)
    return best * 1e6
watch.adoption_begin(); watch.adoption_end()
print(json.dumps({"idle": cost(), "restored": "__call__" not in vars(type(nothing))}))
""",
        tmp_path,
    )
    assert seen["restored"] and seen["idle"] < 1.0


def test_work_past_the_watched_libraries_is_nobody_s_and_counts(tmp_path):
    rows = run(
        """
import numpy
library = ctypes.CDLL(build("k", SPIN + 'extern "C" void work(long us) { spin(us); }', is_python_module=False))
x = numpy.random.default_rng(0).random((1 << 21,))
def forward(rounds):
    library.work(1)
    for _ in range(rounds):
        numpy.sin(x)
forward(1)
seen = []
for rounds in (0, 4):
    watch.adoption_begin()
    forward(rounds)
    seen.append(watch.adoption_end())
print(json.dumps(seen))
""",
        tmp_path,
    )
    assert [row["owner"] for row in rows[0]] == ["target"]
    assert [row["owner"] for row in rows[1]] == ["unknown", "target"] and rows[1][0]["us"] > 5000


def test_a_vendor_library_called_past_torch_is_the_vendor_s(tmp_path):
    rows = run(
        """
import glob, numpy
found = glob.glob(str(Path(numpy.__file__).parents[1] / "*.libs" / "*openblas*"))
names = ("scipy_cblas_ddot64_", "cblas_ddot64_", "scipy_cblas_ddot", "cblas_ddot")
library = ctypes.CDLL(found[0]) if found else None
dot = next((getattr(library, name) for name in names if library and hasattr(library, name)), None)
if dot is None:
    print(json.dumps(None))
    raise SystemExit
x = numpy.ones(1 << 21)
dot.argtypes, dot.restype = [ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64] + [ctypes.c_void_p, ctypes.c_int64], None
watch.adoption_begin()
dot(x.size, x.ctypes.data, 1, x.ctypes.data, 1)
print(json.dumps(watch.adoption_end()))
""",
        tmp_path,
    )
    if rows is None:
        pytest.skip("NumPy comes without OpenBLAS here")
    assert [row["owner"] for row in rows] == ["vendor"]
