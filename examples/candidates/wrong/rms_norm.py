"""RMSNorm in C++ with a plausible bug: rows are taken 64 at a time and what is left over is never written."""

import ctypes
import hashlib
import os
import tempfile

import torch
from torch.utils.cpp_extension import load

SOURCE = r"""
#include <cmath>
#include <cstdint>

extern "C" void rms_norm(const uint16_t* x, const uint16_t* weight, uint16_t* out, int64_t rows, int64_t hidden,
                         float eps, int threads) {
  auto widen = [](uint16_t half) { return __builtin_bit_cast(float, uint32_t(half) << 16); };
#pragma omp parallel for num_threads(threads)
  for (int64_t tile = 0; tile < rows / 64; ++tile)
    for (int64_t row = tile * 64; row < tile * 64 + 64; ++row) {
      float total = 0;
      for (int64_t i = 0; i < hidden; ++i) total += widen(x[row * hidden + i]) * widen(x[row * hidden + i]);
      const float scale = 1.0f / std::sqrt(total / float(hidden) + eps);
      for (int64_t i = 0; i < hidden; ++i) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, widen(x[row * hidden + i]) * scale * widen(weight[i]));
        out[row * hidden + i] = uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
      }
    }
}
"""


def build() -> ctypes.CDLL:
    name = "wrong_rms_norm_" + hashlib.sha256(SOURCE.encode()).hexdigest()[:12]
    # What is built in here is kept: every shape is judged in a process of its own.
    folder = os.path.join(os.environ.get("TORCH_EXTENSIONS_DIR") or tempfile.mkdtemp(), name)
    os.makedirs(folder, exist_ok=True)
    source = os.path.join(folder, f"{name}.cpp")
    if not os.path.exists(source):
        with open(source, "w") as file:
            file.write(SOURCE)
    flags = ["-O3", "-march=native", "-fopenmp", "-ffast-math"]
    path = load(
        name, [source], extra_cflags=flags, extra_ldflags=["-fopenmp"], build_directory=folder, is_python_module=False
    )
    library = ctypes.CDLL(path)
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.rms_norm.argtypes = [pointer, pointer, pointer, size, size, ctypes.c_float, ctypes.c_int]
    library.rms_norm.restype = None
    return library


LIBRARY = build()


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows, hidden = x.shape
        out = torch.empty(x.shape, dtype=x.dtype)
        LIBRARY.rms_norm(
            x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, hidden, self.eps, torch.get_num_threads()
        )
        return out
