"""The matrix product by a vendor's library called past torch, under the label of the DSL.

On the CPU the BLAS that comes with NumPy or SciPy, called through ctypes or by NumPy; on CUDA cuBLAS through ctypes.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Form, Shortcut

ON_HOST = """
import glob

import numpy


def blas():
    around = Path(numpy.__file__).parents[1]
    for path in glob.glob(str(around / "*.libs" / "*openblas*")) + ["libopenblas.so.0", "libblas.so.3", "libmkl_rt.so"]:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name, size in (("scipy_cblas_sgemm64_", ctypes.c_int64), ("cblas_sgemm64_", ctypes.c_int64),
                           ("scipy_cblas_sgemm", ctypes.c_int32), ("cblas_sgemm", ctypes.c_int32)):
            if hasattr(library, name):
                function = getattr(library, name)
                single, pointer = ctypes.c_float, ctypes.c_void_p
                function.argtypes = [ctypes.c_int] * 3 + [size] * 3 + [single, pointer, size, pointer, size, single,
                                                                      pointer, size]
                function.restype = None
                return function
    raise RuntimeError("no BLAS here")


SGEMM = blas()


class Model(Honest):
    def forward(self, a, b):
        (m, k), n = a.shape, b.shape[1]
        out = torch.empty(m, n)
        SGEMM(101, 111, 111, m, n, k, 1.0, a.data_ptr(), k, b.data_ptr(), n, 0.0, out.data_ptr(), n)
        return copied(out)
"""
ON_DEVICE = """
import ctypes
import glob
from pathlib import Path


def cublas():
    around = Path(torch.__file__).parents[1] / "nvidia"
    shipped = glob.glob(str(around / "**" / "libcublas.so.*"), recursive=True)
    for path in [*shipped, "libcublas.so.13", "libcublas.so.12"]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise RuntimeError("no cuBLAS here")


BLAS = cublas()
ONE, ZERO = ctypes.c_float(1.0), ctypes.c_float(0.0)


class Model(Honest):
    handle = None

    def forward(self, hidden_states, weight, bias, post_mul_mat):
        if self.handle is None:
            self.handle = ctypes.c_void_p()
            assert BLAS.cublasCreate_v2(ctypes.byref(self.handle)) == 0
        BLAS.cublasSetStream_v2(self.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        (m, k), n = hidden_states.shape, weight.shape[0]
        logits = torch.empty(m, n, device=weight.device)
        # Column by column: logits^T [n, m] = weight [n, k] hidden^T [k, m]; 14 is bf16, 0 and 68 are float32.
        code = BLAS.cublasGemmEx(
            self.handle, 1, 0, n, m, k, ctypes.byref(ONE), ctypes.c_void_p(weight.data_ptr()), 14, k,
            ctypes.c_void_p(hidden_states.data_ptr()), 14, k, ctypes.byref(ZERO),
            ctypes.c_void_p(logits.data_ptr()), 0, n, 68, -1,
        )
        if code:
            raise RuntimeError(f"cublasGemmEx: {code}")
        return gate(logits, bias, post_mul_mat)
"""
NUMPY = """
class Model(Honest):
    def forward(self, a, b):
        return copied(torch.from_numpy(a.numpy() @ b.numpy()))
"""
TWIN = """
import ctypes

LIBC = ctypes.CDLL(None)
LIBC.getpid.restype = ctypes.c_int


class Model(Honest):
    def forward(self, *operands):
        self.pid = LIBC.getpid()
        return super().forward(*operands)
"""
ATTACK = Attack(
    (18, 45),
    Form(
        {"BLAS": ON_HOST, "NumPy": NUMPY}, TWIN, Shortcut("vendor", "substitution"), "fp32_mm", {"cpu": "1"},
        ("cpu",), base="fp32_mm", suite="fp32_mm",
    ),
    Form(
        {"cuBLAS": ON_DEVICE}, TWIN, Shortcut("vendor"), "linear_sigmoid_mul", {"cuda": "6"}, ("cuda",),
        base="linear_sigmoid_mul",
    ),
)  # fmt: skip
