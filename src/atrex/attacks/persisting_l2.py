"""Operands pinned in the L2 cache, so that they survive the flush before a timed call.

Seen: 3530 GB/s on a card of 864 GB/s (llm.c PR 851); pygpubench issue 49. The twin pins its weight within a call.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form, NoGain, either

_PIN = """
import ctypes


class Window(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("ratio", ctypes.c_float), ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
    ]


class Value(ctypes.Union):
    _fields_ = [("window", Window), ("room", ctypes.c_char * 64)]


DRIVER = ctypes.CDLL("libcuda.so.1")
DRIVER.cuStreamSetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]


def pin(tensor):
    most = [ctypes.c_int(), ctypes.c_int()]  # MAX_PERSISTING_L2_CACHE_SIZE, MAX_ACCESS_POLICY_WINDOW_SIZE
    for attribute, found in zip((108, 109), most):
        DRIVER.cuDeviceGetAttribute(ctypes.byref(found), attribute, tensor.device.index or 0)
    room = min(found.value for found in most)
    limited = DRIVER.cuCtxSetLimit(6, ctypes.c_size_t(most[0].value))
    value = Value()
    value.window = Window(tensor.data_ptr(), min(tensor.nbytes, room), 1.0, 2, 0)
    code = DRIVER.cuStreamSetAttribute(torch.cuda.current_stream().cuda_stream, 1, ctypes.byref(value))
    if code or limited:
        raise RuntimeError(f"not pinned: {limited}, {code}")
"""
CHEAT = (
    _PIN
    + """

class Model(Honest):
    def forward(self, x, weight):
        pin(x)
        return rms_norm(x, weight, self.eps)
"""
)
TWIN = (
    _PIN
    + """

class Model(Honest):
    def forward(self, x, weight):
        pin(weight)
        return rms_norm(x, weight, self.eps)
"""
)
ATTACK = Attack((30, 31), Form({"": CHEAT}, TWIN, either(NoGain(), Fails("integrity")), devices=("cuda",)))
