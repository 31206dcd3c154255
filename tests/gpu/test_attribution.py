"""Whose device time is: candidates that mix kernels of their DSL with torch's in known proportion, and the examples.

Both kinds of kernel scale the same gigabyte, so each takes as long as the memory is busy. What they take is measured
by events, apart from the judge, and the share of device time that the judge attributes has to follow from that.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from atrex.dsls.cuda import find_nvcc
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_suite

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXAMPLES = Path(__file__).parents[2] / "examples" / "candidates"
nvcc = pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc: install the CUDA toolkit, or set CUDA_HOME")
cute = pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="pip install 'atrex[cutedsl]'")

TRITON = """
import triton, triton.language as tl

@triton.jit
def scale_kernel(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 1.5)

def own(x, y):
    scale_kernel[(x.numel() // 4096,)](x, y, BLOCK=4096)
"""

GLUON = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

@gluon.jit
def scale_kernel(x, y, BLOCK: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    at = gl.program_id(0).to(gl.int64) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    gl.store(y + at, gl.load(x + at) * 1.5)

def own(x, y):
    scale_kernel[(x.numel() // 4096,)](x, y, BLOCK=4096)
"""

CUDA = '''
import ctypes, os, tempfile
from torch.utils.cpp_extension import load

SOURCE = """
#include <cuda_runtime.h>
namespace {
__global__ void scale_kernel(const float4* x, float4* y) {
  const size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const float4 v = x[at];
  y[at] = make_float4(v.x * 1.5f, v.y * 1.5f, v.z * 1.5f, v.w * 1.5f);
}
}
extern "C" int scale(const void* x, void* y, long count, void* stream) {
  scale_kernel<<<count / 1024, 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float4*>(x), static_cast<float4*>(y));
  return cudaGetLastError();
}
"""
with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "scale.cu")
    with open(file, "w") as out:
        out.write(SOURCE)
    library = ctypes.CDLL(load("scale_of_a_test", [file], is_python_module=False))
library.scale.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]

def own(x, y):
    stream = torch.cuda.current_stream().cuda_stream
    assert library.scale(x.data_ptr(), y.data_ptr(), x.numel(), stream) == 0
'''

MODEL = """
class Model(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps
        self.scratch = None
    def forward(self, x, weight):
        if self.scratch is None:
            self.scratch = [torch.ones(1 << 27, device=x.device) for _ in range(2)]
        a, b = self.scratch
        for _ in range(OWN):
            own(a, b)
        for _ in range(TORCHS):
            torch.mul(a, 1.5, out=b)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * weight.float()).to(x.dtype)
"""

KERNELS = {"triton": TRITON, "gluon": GLUON, "cuda": CUDA}
DSLS = ["triton", "gluon", pytest.param("cuda", marks=nvcc)]
SMALLEST = "46"


@pytest.fixture(scope="module")
def setup():
    from atrex.evaluate.setup import prepare

    made = prepare("cuda:0", Seeds(), 2, Budgets(compile=180, execution=10, performance=5))
    yield made
    made.close()


@pytest.fixture
def judge(setup, tmp_path):
    suite = load_suite()

    def run(source, dsl, shape=SMALLEST):
        path = tmp_path / "rms_norm.py"
        path.write_text(source)
        problem = suite.problem("rms_norm")
        unit = Unit(Candidate(path, str(path), str(path), "rms_norm", source), problem, problem.shape(shape), dsl)
        return UnitJudge(setup, unit).run()

    return run


def candidate(dsl, own, torchs):
    return "import torch\n" + KERNELS[dsl] + MODEL.replace("OWN", str(own)).replace("TORCHS", str(torchs))


def microseconds(call, times=20):
    """The median time of a call that keeps the device busy far longer than its launch takes."""
    call()
    found = []
    for _ in range(times):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end) * 1e3)
    return sorted(found)[times // 2]


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """alone(dsl) -> (microseconds of the DSL's kernel, of torch's), measured apart from the judge."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))

    def run(dsl):
        path = tmp_path / f"alone_{dsl}.py"
        path.write_text("import torch\n" + KERNELS[dsl])
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        a, b = (torch.ones(1 << 27, device="cuda:0") for _ in range(2))
        return microseconds(lambda: module.own(a, b)), microseconds(lambda: torch.mul(a, 1.5, out=b))

    return run


@pytest.mark.parametrize("dsl", DSLS)
@pytest.mark.parametrize(("own", "torchs"), [(3, 1), (1, 1), (1, 3)])
def test_the_share_is_that_of_the_time_which_the_dsl_s_kernels_take(judge, alone, dsl, own, torchs):
    record = judge(candidate(dsl, own, torchs), dsl)
    mine, theirs = alone(dsl)
    expected = own * mine / (own * mine + torchs * theirs)
    assert record.verdict.status == "passed", record.verdict
    assert record.adoption.share == pytest.approx(expected, abs=0.03), (mine, theirs, record.adoption.kernels)
    assert {k.owner for k in record.adoption.kernels} == {"target", "torch"}
    assert [k.name for k in record.adoption.kernels if k.owner == "target" and "scale_kernel" not in k.name] == []
    assert record.verdict.shortcut == (None if record.adoption.share > 0.5 else "torch")


@pytest.mark.parametrize("dsl", DSLS)
def test_torch_alone_is_not_adopted(judge, dsl):
    record = judge(candidate(dsl, 0, 1), dsl)
    assert record.adoption.share == 0 and record.verdict.shortcut == "torch"


@nvcc
def test_a_triton_kernel_in_a_cuda_candidate_is_a_substitution(judge):
    mixed = CUDA + TRITON.replace("def own", "def substitute") + MODEL.replace("OWN", "1").replace("TORCHS", "0")
    record = judge(
        "import torch\n" + mixed.replace("own(a, b)", "own(a, b)\n            [substitute(a, b) for _ in range(3)]"),
        "cuda",
    )
    owners = {k.owner for k in record.adoption.kernels if k.us > 50}
    assert owners == {"target", "dsl"} and record.verdict.shortcut == "substitution"
    assert record.adoption.share == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize("dsl", [*DSLS, pytest.param("cutedsl", marks=cute)])
@pytest.mark.parametrize("shape", ["5", "46"])
def test_the_rms_norm_examples_pass_with_all_their_time_in_their_own_kernels(judge, dsl, shape):
    record = judge((EXAMPLES / dsl / "rms_norm.py").read_text(), dsl, shape)
    assert record.verdict.status == "passed", record.verdict
    assert record.adoption.share == 1.0 and record.verdict.shortcut is None
    assert {a.kind for a in record.compile.artifacts} == {"so" if dsl == "cuda" else "cubin"}
