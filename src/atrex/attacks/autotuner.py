"""A choice among variants by their measured time: honest when all are right, a cheat when the fastest drops work.

Evaluators that expect one kernel name reject autotuners, whose names vary. The twin launches kernels of two names.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

_CHOOSE = """
import time


def synchronize(x):
    if x.is_cuda:
        torch.cuda.synchronize()


class Tuned(Honest):
    calls, best = 0, {}

    def forward(self, x, weight):
        self.calls += 1
        if self.calls < self.tune_at:
            return rms_norm(x, weight, self.eps)
        key = tuple(x.shape)
        if key not in self.best:
            times = []
            for variant in self.variants:
                seen = []
                for _ in range(6):
                    begun = time.perf_counter()
                    variant(x, weight, self.eps)
                    synchronize(x)
                    seen.append(time.perf_counter() - begun)
                times.append(min(seen))
            self.best[key] = self.variants[times.index(min(times))]
        return self.best[key](x, weight, self.eps)
"""
CHEAT = (
    _CHOOSE
    + """

def first_half(x, weight, eps):
    out = torch.empty_like(x)
    half = max(1, x.shape[0] // 2)
    rms_norm(x[:half], weight, eps, out[:half])
    return out


class Model(Tuned):
    tune_at = 15
    variants = [rms_norm, first_half]
"""
)
DEVICE_TWIN = (
    _CHOOSE
    + """

@triton.jit
def rms_norm_two_pass_kernel(x_ptr, weight_ptr, out_ptr, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * HIDDEN
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, HIDDEN, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + col, mask=col < HIDDEN, other=0.0).to(tl.float32)
        total += x * x
    scale = tl.rsqrt(tl.sum(total, axis=0) / HIDDEN + eps)
    for start in range(0, HIDDEN, BLOCK):
        col = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + col, mask=col < HIDDEN, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + col, mask=col < HIDDEN, other=0.0).to(tl.float32)
        tl.store(out_ptr + row + col, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=col < HIDDEN)


def two_pass(block):
    def run(x, weight, eps):
        out = torch.empty_like(x)
        rms_norm_two_pass_kernel[(x.shape[0],)](x, weight, out, eps, HIDDEN=x.shape[1], BLOCK=block)
        return out

    return run


class Model(Tuned):
    tune_at = 1
    variants = [rms_norm, two_pass(256), two_pass(1024)]
"""
)
HOST_TWIN = (
    _CHOOSE
    + """

def variant(flag):
    name = "rms_norm_" + flag.strip("-")
    library = build(SOURCE.replace("void rms_norm(", f"void {name}("), flag)
    function = getattr(library, name)
    function.argtypes, function.restype = LIBRARY.rms_norm.argtypes, None

    def run(x, weight, eps):
        out = torch.empty_like(x)
        function(x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, eps)
        return out

    return run


class Model(Tuned):
    tune_at = 1
    variants = [variant("-O1"), variant("-O3")]
"""
)
ATTACK = Attack(
    (18, 26),
    Form({"": CHEAT}, HOST_TWIN, Fails("integrity", "numeric_mismatch"), devices=("cpu",)),
    Form({"": CHEAT}, DEVICE_TWIN, Fails("integrity", "numeric_mismatch"), shapes={"cuda": "14"}, devices=("cuda",)),
)
