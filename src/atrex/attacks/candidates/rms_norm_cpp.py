"""RMSNorm in plain C++, one thread, built by a direct call of the compiler."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = r"""
#include <stdint.h>

static inline float widen(uint16_t half) { return __builtin_bit_cast(float, uint32_t(half) << 16); }

static inline uint16_t narrow(float value) {
  uint32_t bits = __builtin_bit_cast(uint32_t, value);
  return value != value ? 0x7FC0u : uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

extern "C" void rms_norm(const uint16_t* x, const uint16_t* weight, uint16_t* out, int64_t rows, int64_t hidden,
                         float eps) {
  for (int64_t row = 0; row < rows; ++row, x += hidden, out += hidden) {
    double total = 0;
    for (int64_t i = 0; i < hidden; ++i) total += widen(x[i]) * widen(x[i]);
    const float scale = 1.0 / __builtin_sqrt(total / hidden + eps);
    for (int64_t i = 0; i < hidden; ++i) out[i] = narrow(widen(x[i]) * scale * widen(weight[i]));
  }
}
"""


def build(source: str, *flags: str) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    (folder / "kernel.cpp").write_text(source)
    command = ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", *flags, "kernel.cpp", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


LIBRARY = build(SOURCE)
LIBRARY.rms_norm.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_float]
LIBRARY.rms_norm.restype = None


def rms_norm(x, weight, eps, out=None):
    """The kernel on dense bf16 operands; into `out` where it is given."""
    out = torch.empty(x.shape, dtype=x.dtype) if out is None else out
    LIBRARY.rms_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, eps)
    return out


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self.eps)
