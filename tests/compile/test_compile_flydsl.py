"""FlyDSL compiled without a device; whose a kernel is, from the symbols of the code objects."""

import pytest

from atrex.dsls.offline.linker import find_linker
from tests.compile.one_process import compile_here

pytest.importorskip("flydsl", reason="pip install 'atrex[flydsl]'")
pytestmark = pytest.mark.skipif(find_linker() is None, reason="needs ld.lld 19 or newer: apt-get install lld-19")

KERNELS = """
import flydsl.compiler as flyc, flydsl.expr as fx
@flyc.kernel
def {name}(x: fx.Tensor):
    thread = fx.thread_idx.x
    x[thread] = x[thread] * fx.BFloat16(2.0)
"""
SOURCE = (
    KERNELS.format(name="own_kernel")
    + """
import torch
from other import other_kernel

@flyc.kernel
def greedy_kernel(x: fx.Tensor):
    shared = fx.SharedAllocator().allocate(fx.Array[fx.Float32, 20000]).peek()
    shared[fx.thread_idx.x] = fx.Float32(1.0)
    fx.barrier()
    x[fx.thread_idx.x] = shared[0].to(fx.BFloat16)

@flyc.jit
def greedy(x: fx.Tensor, stream: fx.Stream = fx.Stream(None)):
    greedy_kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)

@flyc.jit
def launch(x: fx.Tensor, twice: fx.Constexpr[bool], stream: fx.Stream = fx.Stream(None)):
    own_kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)
    if fx.const_expr(twice):
        other_kernel(x).launch(grid=(1, 1, 1), block=(64, 1, 1), stream=stream)

class Model(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
    def forward(self, x, weight):
        ACT
"""
)
COMPILED = """stream = torch.cuda.current_stream()
        compiled = flyc.compile(launch, weight, True, stream)
        compiled(weight, True, stream)"""


def candidate(act, **more):
    files = {"other.py": KERNELS.format(name="other_kernel")}
    return {"source": SOURCE.replace("ACT", act), "dsl": "flydsl", "target": "gfx942", "files": files} | more


CANDIDATES = {
    "compiled": candidate(
        COMPILED, owners=["own_kernel_0", "own_kernel_0.kd", "other_kernel_1", "own_kernel_7", "Cijk_A"]
    ),
    "direct": candidate("launch(weight, False)"),
    "dlpack": candidate("launch(flyc.from_dlpack(weight), False)"),
    "broken": candidate("launch(weight, weight.no_such)"),
    "greedy": candidate("greedy(weight)"),
    "torch": candidate("return x * 2"),
}


@pytest.fixture(scope="module")
def seen():
    return compile_here(CANDIDATES)


@pytest.mark.parametrize("name", ["compiled", "direct", "dlpack"])
def test_kernels_of_the_candidate_s_own_file_are_artifacts_by_their_symbols(seen, name):
    found = seen[name]["shapes"]["0"]
    assert (found["status"], found["reason"]) == ("compiled", "")
    assert [(a["name"], a["kind"]) for a in found["artifacts"]] == [("own_kernel_0", "hsaco")]
    assert [a["sha256"] for a in seen[name]["artifacts"]] == [found["artifacts"][0]["sha256"]]
    assert seen[name]["missing"] == []


def test_a_kernel_belongs_to_the_file_it_was_traced_from(seen):
    assert seen["compiled"]["owners"] == {
        "own_kernel_0": "target",
        "own_kernel_0.kd": "target",  # as ROCm's profiler calls it
        "other_kernel_1": "dsl",
        "own_kernel_7": "unknown",
        "Cijk_A": "vendor",
    }


def test_what_raises_while_launching_fails(seen):
    found = seen["broken"]["shapes"]["0"]
    assert found["status"] == "failed" and "no_such" in found["reason"]


def test_a_kernel_that_takes_more_than_the_target_has_fails(seen):
    found = seen["greedy"]["shapes"]["0"]
    assert found["status"] == "failed", found
    assert [(a["name"], bool(a["reason"])) for a in found["artifacts"]] == [("greedy_kernel_0", True)]


def test_a_forward_without_a_kernel_shows_nothing(seen):
    assert seen["torch"]["shapes"]["0"]["status"] == "undetermined"
