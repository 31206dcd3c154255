"""The clock replaced from Python: the event's or the host timer's reading, or the harness's own timing function.

Seen: patched elapsed_time, perf_counter, do_bench and profiler wrappers. The twin times itself to choose a variant.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

EVENT = """
torch.cuda.Event.elapsed_time = lambda *events: 0.0005
"""
TIMER = """
import time

real = time.perf_counter_ns
begun = real()
time.perf_counter_ns = lambda: begun + (real() - begun) // 20
"""
PROTOCOL = """
import gc


def shortened(timed):
    def call(*args, **kwargs):
        value, us, seen = timed(*args, **kwargs)
        return value, us / 20, seen

    return call


class Model(Honest):
    patched = False

    def forward(self, x, weight):
        if not self.patched:
            bench = next(one for one in gc.get_objects() if type(one).__name__ == "Bench")
            kind = type(bench.protocol)
            kind.timed = shortened(kind.timed)
            self.patched = True
        return rms_norm(x, weight, self.eps)
"""
HOST_TWIN = """
import time


class Model(Honest):
    best = None

    def forward(self, x, weight):
        if self.best is None:
            times = {}
            for rows in (64, x.shape[0]):
                begun = time.perf_counter_ns()
                rms_norm(x[:rows], weight, self.eps)
                times[time.perf_counter_ns() - begun] = rows
            self.best = times[min(times)]
        return rms_norm(x, weight, self.eps)
"""
DEVICE_TWIN = """
class Model(Honest):
    best = None

    def forward(self, x, weight):
        if self.best is None:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            rms_norm(x, weight, self.eps)
            end.record()
            end.synchronize()
            self.best = start.elapsed_time(end)
        return rms_norm(x, weight, self.eps)
"""
ATTACK = Attack(
    (29, 34, 35),
    Form({"timer": TIMER, "protocol": PROTOCOL}, HOST_TWIN, Fails("integrity"), devices=("cpu",)),
    Form(
        {"event": EVENT, "protocol": PROTOCOL}, DEVICE_TWIN, Fails("integrity"), shapes={"cuda": "13"},
        devices=("cuda",),
    ),
)  # fmt: skip
