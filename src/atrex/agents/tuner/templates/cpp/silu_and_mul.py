"""SiLU of the left half times the right half in C++ with OpenMP; the exponential is a polynomial over vectors."""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from typing import Literal

import torch

VECTOR: Literal[4, 8, 16, 32] = 8  # elements of one vector
UNROLL: Literal[1, 2, 4, 8] = 2  # vectors worked on side by side
BLOCK: Literal[128, 256, 512, 1024, 2048] = 512  # elements staged before they are stored, and given to a thread
PREFETCH: Literal[0, 256, 512, 1024, 2048, 4096] = 0  # elements read ahead by hand; 0: left to the hardware
STREAM_KIB: Literal[1048576, 16384, 4096, 1024, 256, 0] = 4096  # outputs from here on go around the caches
LARGE_PAGES_KIB: Literal[1048576, 16384, 4096, 1024, 512] = 4096  # outputs from here on ask for 2 MiB pages
PER_THREAD: Literal[32768, 16384, 8192, 4096, 2048] = 8192  # outputs that are worth a thread

DEFINES = (
    f"#define VECTOR {VECTOR}\n#define UNROLL {UNROLL}\n#define BLOCK {BLOCK}\n#define PREFETCH {PREFETCH}\n"
    f"#define STREAM_KIB {STREAM_KIB}\n#define LARGE_PAGES_KIB {LARGE_PAGES_KIB}\n"
)
SOURCE = (
    DEFINES
    + r"""
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace {

typedef float Floats __attribute__((vector_size(4 * VECTOR)));
typedef uint32_t Words __attribute__((vector_size(4 * VECTOR)));
typedef int32_t Integers __attribute__((vector_size(4 * VECTOR)));
typedef uint16_t Halves __attribute__((vector_size(2 * VECTOR)));

inline Floats load(const uint16_t* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  return (Floats)(__builtin_convertvector(halves, Words) << 16);
}

inline Words narrow(Floats values) {        // round to nearest even, NaN stays NaN
  const Words bits = (Words)values, nan = (Words)(values != values);
  return (nan & 0x7FC0u) | (~nan & ((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16));
}

inline Floats select(Integers where, Floats yes, Floats no) {
  return (Floats)(((Integers)yes & where) | ((Integers)no & ~where));
}

// exp(x) = 2^n * 2^f with |f| <= 1/2, 2^f by its Taylor series to degree 6: relative error under 2e-7. The clamp keeps
// 2^n a normal number; beyond it the sigmoid is 0 or 1 in bfloat16 anyway.
inline Floats exponential(Floats x) {
  const Floats most = Floats{} + 126.0f, least = Floats{} - 126.0f;
  Floats t = x * 1.44269504f;
  t = select(t > most, most, t);
  t = select(t < least, least, t);
  const Floats n = (t + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: the sum has no fraction, rounded to nearest
  const Floats f = t - n;
  Floats p = Floats{} + 1.5403530e-4f;
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  return p * (Floats)((__builtin_convertvector(n, Integers) + 127) << 23);
}

inline void activate(const uint16_t* gate, const uint16_t* up, uint16_t* to) {
  const Floats g = load(gate);
  const Floats silu = (Floats)(narrow(g / (1.0f + exponential(-g))) << 16);
  const Halves halves = __builtin_convertvector(narrow(silu * load(up)), Halves);
  std::memcpy(to, &halves, sizeof(halves));
}

void store(uint16_t* to, const uint16_t* from, int64_t count, bool stream) {
#if defined(__AVX__)
  if (stream && (reinterpret_cast<uintptr_t>(to) & 31) == 0 && count % 16 == 0) {
    for (int64_t i = 0; i < count; i += 16)
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), *reinterpret_cast<const __m256i*>(from + i));
    return;
  }
#endif
  std::memcpy(to, from, count * sizeof(uint16_t));
}

// A large output is fresh memory on every call; faulting it in by 4 KiB pages costs more than the computation.
void expect_large_pages(void* memory, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t page = 2 << 20, begin = (reinterpret_cast<uintptr_t>(memory) + page - 1) & ~(page - 1);
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) & ~(page - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace

extern "C" void silu_and_mul(const uint16_t* x, uint16_t* out, int64_t rows, int64_t half, int64_t stride,
                             int threads) {
  const int64_t bytes = rows * half * int64_t(sizeof(uint16_t));
  const bool stream = bytes >= int64_t(STREAM_KIB) << 10;
  if (bytes >= int64_t(LARGE_PAGES_KIB) << 10) expect_large_pages(out, bytes);
  const int64_t blocks = (half + BLOCK - 1) / BLOCK;
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t start = block * BLOCK;
      const int64_t count = half - start < BLOCK ? half - start : BLOCK;
      const uint16_t* gate = x + row * stride + start;
      const uint16_t* up = gate + half;
      alignas(64) uint16_t staged[BLOCK];
      int64_t i = 0;
      for (; i + VECTOR * UNROLL <= count; i += VECTOR * UNROLL) {
#if PREFETCH
#pragma GCC unroll 16
        for (int64_t line = 0; line < VECTOR * UNROLL; line += 32) {
          __builtin_prefetch(gate + i + PREFETCH + line);
          __builtin_prefetch(up + i + PREFETCH + line);
        }
#endif
#pragma GCC unroll 8
        for (int u = 0; u < UNROLL; ++u) activate(gate + i + u * VECTOR, up + i + u * VECTOR, staged + i + u * VECTOR);
      }
      for (; i + VECTOR <= count; i += VECTOR) activate(gate + i, up + i, staged + i);
      if (i < count) {                      // the rest, in a vector of its own
        uint16_t rest[3][VECTOR] = {};
        std::memcpy(rest[0], gate + i, (count - i) * sizeof(uint16_t));
        std::memcpy(rest[1], up + i, (count - i) * sizeof(uint16_t));
        activate(rest[0], rest[1], rest[2]);
        std::memcpy(staged + i, rest[2], (count - i) * sizeof(uint16_t));
      }
      store(out + row * half + start, staged, count, stream);
#if defined(__AVX__)
      if (stream) _mm_sfence();
#endif
    }
}
"""
)


def build() -> ctypes.CDLL:
    name = "silu_and_mul_" + hashlib.sha256(SOURCE.encode()).hexdigest()[:12]
    # What is built in here is kept: every shape is judged in a process of its own.
    folder = os.environ.get("TORCH_EXTENSIONS_DIR") or tempfile.mkdtemp()
    source, library = os.path.join(folder, f"{name}.cpp"), os.path.join(folder, f"{name}.so")
    flags = ["-O3", "-march=native", "-fopenmp", "-fno-trapping-math", "-shared", "-fPIC"]
    if not os.path.exists(library):
        with open(source, "w") as file:
            file.write(SOURCE)
        done = subprocess.run(["g++", *flags, source, "-o", library + ".part"], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        os.replace(library + ".part", library)
    loaded = ctypes.CDLL(library)
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    loaded.silu_and_mul.argtypes = [pointer, pointer, size, size, size, ctypes.c_int]
    loaded.silu_and_mul.restype = None
    return loaded


LIBRARY = build()


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.bfloat16:
            raise TypeError(f"expected a bfloat16 operand, got {x.dtype}")
        rows, half = x.shape[0], x.shape[1] // 2
        out = torch.empty((rows, half), dtype=x.dtype)
        threads = max(1, min(torch.get_num_threads(), out.numel() // PER_THREAD))
        LIBRARY.silu_and_mul(x.data_ptr(), out.data_ptr(), rows, half, x.stride(0), threads)
        return out
