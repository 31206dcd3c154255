"""Answers of the worker forged: a frame written into its channel, or its sending replaced.

The judge reads every answer through a form, and what it compares, it compares itself.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

_FRAME = """
import json
import os
import stat
import struct


def channel():
    return next(fd for fd in range(3, 64) if is_socket(fd))


def is_socket(fd):
    try:
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        return False


def send(message):
    body = json.dumps(message).encode()
    os.write(channel(), struct.pack("<I", len(body)) + body)
"""
FRAME = (
    _FRAME
    + """

class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        if self.calls > 20:
            output = {"name": "out", "dtype": "bfloat16", "shape": list(x.shape), "contiguous": True,
                      "device": str(x.device), "overlaps": []}
            send({"ended": True})
            send({"us": 1.0, "launch_us": 1.0, "structure": "tensor", "outputs": [output]})
        return rms_norm(x, weight, self.eps)
"""
)
PASSED = (
    _FRAME
    + """

class Model(Honest):
    def forward(self, x, weight):
        send({"verdict": {"status": "passed"}, "us": 0.01, "PASSED": True})
        return torch.zeros_like(x)
"""
)
NONSENSE = """
from atrex.evaluate.channel import Channel

real = Channel.send
Channel.send = lambda self, message, fds=None: real(self, message | {"us": -1.0} if "us" in message else message, fds)
"""
TWIN = """
import os
import socket


class Model(Honest):
    def __init__(self, eps):
        super().__init__(eps)
        left, right = socket.socketpair()
        os.write(left.fileno(), b"ready")
        assert right.recv(5) == b"ready"
"""
ATTACK = Attack(
    (37,),
    Form({"frame": FRAME, "verdict": PASSED, "nonsense": NONSENSE}, TWIN,
         Fails("integrity", "interface", "numeric_mismatch", "exception")),
)  # fmt: skip
