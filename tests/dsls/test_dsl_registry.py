import pytest

from atrex import dsls
from atrex.errors import UserError


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch\nimport triton\nimport triton.language as tl", "triton"),
        ("from triton import jit", "triton"),
        ("from torch.utils.cpp_extension import load", "cpp"),
        ("from torch.utils import cpp_extension", "cpp"),
        (
            "import triton\nfrom triton.experimental import gluon\nfrom triton.experimental.gluon import language",
            "gluon",
        ),
        ("import cutlass.cute as cute\nimport torch", "cutedsl"),
        ("import flydsl.compiler as flyc", "flydsl"),
        ("from torch.utils.cpp_extension import load_inline\nload_inline('k', [''], cuda_sources=[''])", "cuda"),
        ("from torch.utils.cpp_extension import load\nX = '__global__ void f() {}'", "cuda"),
        ("import ctypes, subprocess\nsubprocess.run(['nvcc', '-shared', 'k.cu'])", "cuda"),
        ("X = '__global__ void f() {}'", None),
        ("def build():\n    import ctypes, subprocess\n    subprocess.run(['g++', '-O3', 'k.cpp'])", "cpp"),
        ("import ctypes\nctypes.CDLL('libc.so.6')", None),
        ("import torch\nX = 'import triton'", None),
        ("import tritonclient", None),
        ("def broken(:", None),
    ],
)
def test_the_dsl_follows_from_the_imports(source, expected):
    assert dsls.infer(source) == expected


def test_an_unknown_dsl_names_the_known_ones():
    with pytest.raises(UserError, match="unknown 'opencl', expected one of cpp, cuda, cutedsl, flydsl, gluon, triton"):
        dsls.get("opencl")


def test_torch_alone_is_judged_as_the_device_s_own_dsl():
    assert (dsls.default_for("cpu"), dsls.default_for("cuda:1")) == ("cpp", "triton")
    assert "cpu" in dsls.get("cpp").devices and "cuda" in dsls.get("triton").devices
