"""A clock forged below Python: native code rewrites the import tables through which the harness reads the time.

On CUDA the library that interposes is called for cudaEventElapsedTime, on the CPU for clock_gettime. The twin hooks
nothing and reads the same clocks.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form
from atrex.attacks.harness.native import BUILD, HOOK

ON_HOST = (
    f"HOOK = r'''{HOOK}'''\n"
    + r"""
CLOCK = build(HOOK + '''
#include <ctime>

static long long begun = 0;

static long long now(clockid_t clock, timespec* at) {
  clock_gettime(clock, at);
  return at->tv_sec * 1000000000ll + at->tv_nsec;
}

extern "C" int slow_clock(clockid_t clock, timespec* at) {
  const long long real = now(clock, at);
  if (clock != CLOCK_MONOTONIC) return 0;
  const long long slow = begun + (real - begun) / 20;
  at->tv_sec = slow / 1000000000ll;
  at->tv_nsec = slow % 1000000000ll;
  return 0;
}

extern "C" int forge() {
  timespec at;
  begun = now(CLOCK_MONOTONIC, &at);
  return hook("clock_gettime", reinterpret_cast<void*>(slow_clock));
}
''')


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 10 and not CLOCK.forge():
            raise RuntimeError("nothing was hooked")
        return rms_norm(x, weight, self.eps)
"""
)
ON_DEVICE = (
    BUILD
    + f"HOOK = r'''{HOOK}'''\n"
    + r"""
CLOCK = build(HOOK + '''
#include <dlfcn.h>

using Elapsed = int (*)(float*, void*, void*);
static Elapsed real = nullptr;

extern "C" int short_time(float* ms, void* start, void* end) {
  const int code = real(ms, start, end);
  *ms /= 20;
  return code;
}

extern "C" int forge() {
  int slots = 0;
  for (const char* library : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libamdhip64.so"}) {
    void* found = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    for (const char* name : {"cudaEventElapsedTime_v2", "cudaEventElapsedTime", "hipEventElapsedTime"}) {
      auto function = found ? reinterpret_cast<Elapsed>(dlsym(found, name)) : nullptr;
      if (!function) continue;
      real = function;
      slots += hook(name, reinterpret_cast<void*>(short_time));
    }
  }
  return slots;
}
''', "-ldl")


class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls == 10 and not CLOCK.forge():
            raise RuntimeError("nothing was hooked")
        return rms_norm(x, weight, self.eps)
"""
)
HOST_TWIN = """
import time


class Model(Honest):
    def forward(self, x, weight):
        self.started = time.perf_counter_ns()
        return rms_norm(x, weight, self.eps)
"""
DEVICE_TWIN = """
class Model(Honest):
    def forward(self, x, weight):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = rms_norm(x, weight, self.eps)
        end.record()
        return out
"""
ATTACK = Attack(
    (29, 44),
    Form({"": ON_HOST}, HOST_TWIN, Fails("integrity"), devices=("cpu",)),
    Form({"": ON_DEVICE}, DEVICE_TWIN, Fails("integrity"), shapes={"cuda": "13"}, devices=("cuda",)),
)
