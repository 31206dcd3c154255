"""A float32 matrix product in plain C++, one thread, built by a direct call of the compiler."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = r"""
#include <stdint.h>

extern "C" void mm(const float* a, const float* b, float* out, int64_t m, int64_t n, int64_t k) {
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t col = 0; col < n; ++col) out[row * n + col] = 0;
    for (int64_t deep = 0; deep < k; ++deep)
      for (int64_t col = 0; col < n; ++col) out[row * n + col] += a[row * k + deep] * b[deep * n + col];
  }
}

extern "C" void copied(const float* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}
"""


def build(source: str) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    (folder / "kernel.cpp").write_text(source)
    command = ["g++", "-O3", "-std=c++17", "-shared", "-fPIC", "kernel.cpp", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


LIBRARY = build(SOURCE)
LIBRARY.mm.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 3
LIBRARY.copied.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64]
LIBRARY.mm.restype = LIBRARY.copied.restype = None


def mm(a, b):
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype)
    LIBRARY.mm(a.data_ptr(), b.data_ptr(), out.data_ptr(), m, n, k)
    return out


def copied(x):
    out = torch.empty_like(x)
    LIBRARY.copied(x.data_ptr(), out.data_ptr(), x.numel())
    return out


class Model(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return mm(a, b)
