"""The example kernels compile for the targets that the documentation says."""

import importlib.util

import pytest

from atrex.dsls.cuda import find_nvcc
from atrex.dsls.offline.linker import find_linker
from tests.compile.one_process import ROOT, compile_here

EXAMPLES = ROOT / "examples" / "candidates"
SHAPES = ["0", "5", "38", "55"]  # hidden sizes 1024, 1152, 128 and the last listed


def needs(module, install, also=True):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None or not also, reason=install)


CASES = [
    pytest.param("triton", "sm_90a", "cubin", marks=needs("triton", "pip install 'atrex[triton]'")),
    pytest.param("triton", "gfx942", "hsaco", marks=needs("triton", "pip install 'atrex[triton]'")),
    pytest.param("gluon", "sm_90a", "cubin", marks=needs("triton", "pip install 'atrex[triton]'")),
    pytest.param("gluon", "gfx942", "hsaco", marks=needs("triton", "pip install 'atrex[triton]'")),
    pytest.param("cutedsl", "sm_90a", "cubin", marks=needs("cutlass", "pip install 'atrex[cutedsl]'")),
    pytest.param(
        "flydsl", "gfx942", "hsaco",
        marks=needs("flydsl", "pip install 'atrex[flydsl]'; apt-get install lld-19", find_linker() is not None),
    ),
    pytest.param("cuda", "sm_90a", "cubin", marks=needs("torch", "install the CUDA toolkit", find_nvcc() is not None)),
]  # fmt: skip


@pytest.fixture(scope="module")
def seen():
    here = [case.values[:2] for case in CASES if not case.marks[0].args[0]]
    found = {}
    # FlyDSL and CuTe DSL each bring their own MLIR, and one process cannot hold both.
    for alone in ("flydsl", None):
        found |= compile_here(
            {
                f"{dsl} {target}": {
                    "source": (EXAMPLES / dsl / "rms_norm.py").read_text(), "dsl": dsl, "target": target,
                    "shapes": SHAPES,
                }
                for dsl, target in here
                if (dsl == "flydsl") == (alone == "flydsl")
            }
        )  # fmt: skip
    return found


@pytest.mark.parametrize(("dsl", "target", "kind"), CASES)
def test_the_rms_norm_example_compiles_for_every_shape_tried(seen, dsl, target, kind):
    shapes = seen[f"{dsl} {target}"]["shapes"]
    assert {(o["status"], o["reason"]) for o in shapes.values()} == {("compiled", "")}
    assert {a["kind"] for o in shapes.values() for a in o["artifacts"]} == {kind}
    assert all(o["artifacts"] for o in shapes.values())
