"""gated_delta_rule_update in plain C++, token by token; with `low` the state is rounded to bf16 after every token."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <vector>

static inline float widen(uint16_t half) { return __builtin_bit_cast(float, uint32_t(half) << 16); }

static inline uint16_t narrow(float value) {
  uint32_t bits = __builtin_bit_cast(uint32_t, value);
  return value != value ? 0x7FC0u : uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

struct Sizes {
  int64_t batch, tokens, query_heads, heads, key, value;
};

extern "C" void delta(const float* log_rate, const uint16_t* a, const uint16_t* bias, const uint16_t* q,
                      const uint16_t* k, const uint16_t* v, const uint16_t* b, float* pool, const int32_t* index,
                      uint16_t* out, const Sizes* s, float beta, float threshold, int norm, int low) {
  std::vector<float> own(s->key * s->value), query(s->key), keys(s->key), write(s->value), read(s->value);
  for (int64_t sequence = 0; sequence < s->batch; ++sequence)
    for (int64_t head = 0; head < s->heads; ++head) {
      const int64_t group = head / (s->heads / s->query_heads);
      float* kept = index[sequence] < 0 ? nullptr : pool + (index[sequence] * s->heads + head) * s->key * s->value;
      for (int64_t i = 0; i < s->key * s->value; ++i) own[i] = kept ? kept[i] : 0;
      for (int64_t t = 0; t < s->tokens; ++t) {
        const int64_t token = sequence * s->tokens + t, at = token * s->heads + head;
        float q2 = 0, k2 = 0;
        for (int64_t i = 0; i < s->key; ++i) {
          query[i] = widen(q[(token * s->query_heads + group) * s->key + i]);
          keys[i] = widen(k[(token * s->query_heads + group) * s->key + i]);
          q2 += query[i] * query[i];
          k2 += keys[i] * keys[i];
        }
        const float x = (widen(a[at]) + widen(bias[head])) * beta;
        const float step = (x > threshold ? x : std::log1p(std::exp(x))) / beta;
        const float decay = std::exp(-std::exp(log_rate[head]) * step);
        for (int64_t i = 0; i < s->key; ++i) {
          if (norm) query[i] /= std::sqrt(q2 + 1e-6f), keys[i] /= std::sqrt(k2 + 1e-6f);
        }
        for (int64_t c = 0; c < s->value; ++c) write[c] = widen(v[at * s->value + c]), read[c] = 0;
        for (int64_t i = 0; i < s->key; ++i)
          for (int64_t c = 0; c < s->value; ++c) {
            own[i * s->value + c] *= decay;
            write[c] -= own[i * s->value + c] * keys[i];
          }
        const float open = 1 / (1 + std::exp(-widen(b[at])));
        for (int64_t i = 0; i < s->key; ++i)
          for (int64_t c = 0; c < s->value; ++c) {
            float& state = own[i * s->value + c];
            state += keys[i] * (open * write[c]);
            if (low) state = widen(narrow(state));
            read[c] += state * query[i];
          }
        for (int64_t c = 0; c < s->value; ++c) out[at * s->value + c] = narrow(read[c] / std::sqrt(float(s->key)));
      }
      for (int64_t i = 0; kept && i < s->key * s->value; ++i) kept[i] = own[i];
    }
}
"""


def build(source: str) -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    (folder / "kernel.cpp").write_text(source)
    command = ["g++", "-O3", "-std=c++17", "-shared", "-fPIC", "kernel.cpp", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


LIBRARY = build(SOURCE)
LIBRARY.delta.argtypes = [ctypes.c_void_p] * 11 + [ctypes.c_float] * 2 + [ctypes.c_int] * 2
LIBRARY.delta.restype = None


class Model(torch.nn.Module):
    low = False

    def __init__(self, softplus_beta: float, softplus_threshold: float, use_qk_l2norm: bool):
        super().__init__()
        self.beta, self.threshold, self.norm = softplus_beta, softplus_threshold, use_qk_l2norm

    def forward(self, A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices):
        batch, tokens, heads, width = v.shape
        out = torch.empty_like(v)
        sizes = (ctypes.c_int64 * 6)(batch, tokens, q.shape[2], heads, q.shape[3], width)
        operands = (A_log, a, dt_bias, q, k, v, b, initial_state, initial_state_indices, out)
        LIBRARY.delta(
            *(t.data_ptr() for t in operands), ctypes.addressof(sizes), self.beta, self.threshold, int(self.norm),
            int(self.low),
        )  # fmt: skip
        return out
