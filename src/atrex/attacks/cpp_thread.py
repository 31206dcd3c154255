"""A thread started by native code, unknown to Python, that fills the output in after the call has returned."""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form
from atrex.attacks.harness.native import BUILD

ON_HOST = r"""
DEFERRED = build(SOURCE + '''
#include <chrono>
#include <thread>

extern "C" void rms_norm_later(const uint16_t* x, const uint16_t* weight, uint16_t* out, int64_t rows, int64_t hidden,
                               float eps) {
  std::thread([=] {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    rms_norm(x, weight, out, rows, hidden, eps);
  }).detach();
}
''', "-pthread")
DEFERRED.rms_norm_later.argtypes = LIBRARY.rms_norm.argtypes
DEFERRED.rms_norm_later.restype = None


class Model(Honest):
    calls, kept = 0, []

    def forward(self, x, weight):
        self.calls += 1
        if self.calls < 16:
            return rms_norm(x, weight, self.eps)
        out = torch.empty_like(x)
        self.kept = [(x, weight, out), *self.kept[:63]]
        DEFERRED.rms_norm_later(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, self.eps)
        return out
"""
JOINED = r"""
THREADED = build(SOURCE + '''
#include <thread>

extern "C" void rms_norm_threaded(const uint16_t* x, const uint16_t* weight, uint16_t* out, int64_t rows,
                                  int64_t hidden, float eps) {
  std::thread([=] { rms_norm(x, weight, out, rows, hidden, eps); }).join();
}
''', "-pthread")
THREADED.rms_norm_threaded.argtypes = LIBRARY.rms_norm.argtypes
THREADED.rms_norm_threaded.restype = None


class Model(Honest):
    def forward(self, x, weight):
        out = torch.empty_like(x)
        THREADED.rms_norm_threaded(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, self.eps)
        return out
"""
_COPIER = (
    BUILD
    + r"""
COPIER = build('''
#include <chrono>
#include <cstdint>
#include <dlfcn.h>
#include <thread>

using Current = int (*)(void**);
using Set = int (*)(void*);
using Copy = int (*)(uint64_t, uint64_t, size_t);

extern "C" int copy_from_thread(uint64_t to, uint64_t from, size_t bytes, int wait) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (!driver) return 1;
  auto current = reinterpret_cast<Current>(dlsym(driver, "cuCtxGetCurrent"));
  auto set = reinterpret_cast<Set>(dlsym(driver, "cuCtxSetCurrent"));
  auto copy = reinterpret_cast<Copy>(dlsym(driver, "cuMemcpyDtoD_v2"));
  void* context = nullptr;
  current(&context);
  std::thread worker([=] {
    set(context);
    if (!wait) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    copy(to, from, bytes);
  });
  if (wait) worker.join(); else worker.detach();
  return 0;
}
''', "-pthread", "-ldl")
COPIER.copy_from_thread.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int]
"""
)
ON_DEVICE = (
    _COPIER
    + r"""

class Model(Honest):
    calls, kept = 0, []

    def forward(self, x, weight):
        self.calls += 1
        right = rms_norm(x, weight, self.eps)
        if self.calls < 16:
            return right
        out = torch.empty_like(x)
        self.kept = [(right, out), *self.kept[:63]]
        if COPIER.copy_from_thread(out.data_ptr(), right.data_ptr(), out.nbytes, 0):
            raise RuntimeError("no driver to copy with")
        return out
"""
)
COPIED = (
    _COPIER
    + r"""

class Model(Honest):
    def forward(self, x, weight):
        own = torch.empty_like(weight)
        if COPIER.copy_from_thread(own.data_ptr(), weight.data_ptr(), own.nbytes, 1):
            raise RuntimeError("no driver to copy with")
        torch.cuda.synchronize()
        return rms_norm(x, own, self.eps)
"""
)
ATTACK = Attack(
    (21,),
    Form({"": ON_HOST}, JOINED, Fails("integrity"), devices=("cpu",)),
    Form({"": ON_DEVICE}, COPIED, Fails("integrity"), devices=("cuda",)),
)
