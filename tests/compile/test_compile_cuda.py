import pytest

from atrex.dsls.cuda import find_nvcc
from tests.compile.one_process import compile_here

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_nvcc() is None, reason="needs nvcc: install the CUDA toolkit, or set CUDA_HOME"),
]

KERNEL = "__global__ void scale(float* x) { x[threadIdx.x] *= 2; }"
HEAD = "import ctypes, os, tempfile, torch\nfrom torch.utils.cpp_extension import load, load_inline\n"
MODEL = """
class Model(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
    def forward(self, x, weight):
        ACT
"""


def inline(cuda, act="return module.run(x)", flags="[]"):
    build = (
        f"module = load_inline('ext', ['torch::Tensor run(torch::Tensor x);'], cuda_sources=[{cuda!r}], "
        f"functions=['run'], extra_cuda_cflags={flags})\n"
    )
    return {"source": HEAD + build + MODEL.replace("ACT", act), "dsl": "cuda", "target": "sm_90a", "shapes": ["0", "1"]}


BY_HAND = (
    HEAD
    + f"""
path = os.path.join(tempfile.mkdtemp(), "k.cu")
with open(path, "w") as file:
    file.write({KERNEL!r} + ' extern "C" int run(float* x) {{ scale<<<1, 32>>>(x); return 0; }}')
library = ctypes.CDLL(load("by_hand", [path], extra_cuda_cflags=["-O3", "-gencode", "arch=compute_80,code=sm_80"],
                           is_python_module=False))
library.run.argtypes = [ctypes.c_void_p]
"""
    + MODEL.replace(
        "ACT", "assert library.run(x.data_ptr()) == 0\n        return torch.empty_like(x).item_after_launch()"
    )
)

TORCH = "#include <ATen/cuda/CUDAContext.h>\n#include <cusolverDn.h>\n" + KERNEL
CANDIDATES = {
    "inline": inline(KERNEL),
    "flags": inline("#ifndef TWICE\n#error no flag\n#endif\n" + KERNEL, flags="['-DTWICE', '-arch=sm_70']"),
    "hopper": inline('__global__ void k() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }'),
    "broken": inline("__global__ void k() { no_such_thing(); }"),
    "headers": inline(TORCH),
    "by_hand": {"source": BY_HAND, "dsl": "cuda", "target": "sm_90a"},
    "operators": inline(KERNEL, act="return torch.ops.mine.run(x)"),
}


@pytest.fixture(scope="module")
def seen():
    return compile_here(CANDIDATES)


@pytest.mark.parametrize("name", ["inline", "flags", "hopper", "operators"])
def test_device_code_is_compiled_for_the_target_whatever_the_host_code_needs(seen, name):
    for shape in ("0", "1"):
        found = seen[name]["shapes"][shape]
        assert (found["status"], found["reason"]) == ("compiled", "")
        assert [(a["name"], a["kind"], a["bytes"] > 500) for a in found["artifacts"]] == [("cuda.cu", "cubin", True)]


def test_a_library_called_through_ctypes_lets_the_forward_go_on(seen):
    found = seen["by_hand"]["shapes"]["0"]
    assert found["status"] == "failed" and "item_after_launch" in found["reason"]
    assert [a["name"] for a in found["artifacts"]] == ["k.cu"]


def test_a_source_that_nvcc_refuses_fails_with_its_error(seen):
    found = seen["broken"]["shapes"]["0"]
    assert found["status"] == "failed" and "no_such_thing" in found["reason"]
    assert [(a["name"], bool(a["reason"])) for a in found["artifacts"]] == [("cuda.cu", True)]


def test_a_source_that_needs_torch_s_cuda_headers_is_undetermined(seen):
    found = seen["headers"]["shapes"]["0"]
    assert found["status"] == "undetermined" and "torch's headers" in found["reason"]
