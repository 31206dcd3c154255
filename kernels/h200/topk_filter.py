"""Top-k filter of logits: probes of a row in registers count what reaches them, until just k do.

The first probe stands where the k-th largest of a normal sample with the row's mean and deviation would, the next ones
between the two nearest; after that come ties, which a walk over distinct values from above settles. Probing costs a
comparison and an addition an element, three or four times; a search by halving, on integer keys that order as floats
do, takes what is not finite or nothing like a bell. A row of at most 8192 is one program, one read and one write.
Longer rows are cut into pieces: each leaves its k largest in a workspace, and a second launch, whose reads mostly
hit L2, selects among those and filters. Last reads leave the L2 first: what is dirty there stays.
Bound by memory, in small shapes by launches and the search.
Sweeps on an H200: (15381, 4096) 135 us, S 0.78, 141 us with half the warps; (4098, 4096) 46 us, S 0.61; (922, 2048)
13.8 us, S 0.23; (32, 151936) 40 us, S 0.20, 47 us with half the warps; (1, 151936) 10.9 us, S 0.02.
"""

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

PDL = True  # programmatic dependent launch; off for Triton's interpreter
LOWEST = tl.constexpr(-0x80000000)  # below the key of every float
PROBES = tl.constexpr(8)
WALK = tl.constexpr(6)  # distinct values, at most; beyond, halving is shorter


class Config(NamedTuple):
    piece: int  # of a row, in a program; 0: all of it
    warps: int
    filtered: int = 4096  # of a row, in a program of the second launch
    filter_warps: int = 8


def config(rows: int, width: int, k: int) -> Config:
    full = max(64, triton.next_power_of_2(width))
    if full <= max(8192, triton.next_power_of_2(k)):
        return Config(0, min(16, max(1, full // 1024)))
    piece = max(4096, 4 * triton.next_power_of_2(k))
    return Config(piece, min(16, piece // (512 if rows <= 4 else 1024)), 4096 if rows <= 48 else 16384)


def guess(k: int, n: int) -> tuple[float, float]:
    """Where the k-th largest of n of a normal sample is, and how much farther e times fewer are, in deviations."""
    normal = NormalDist()
    z = normal.inv_cdf(min(0.999, max(0.001, 1 - k / n)))
    return z, (1 - normal.cdf(z)) / normal.pdf(z)


def guess_of_best(k: int, n: int) -> tuple[float, float]:
    """The same of the n best of pieces: a tail, and one of an exponential falls not much slower."""
    return math.log(n / k) - 1, 0.65


@triton.jit
def _key(x):
    """Integers that order as the floats do; NaN is the largest."""
    bits = x.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.where(key < -0x7F800001, 0x7FFFFFFF, key)  # below -inf: NaNs with a sign


@triton.jit
def _value(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _sum(x):
    """Of [r, c]; r lies within a thread."""
    return tl.sum(tl.sum(x, axis=0), axis=0)


@triton.jit
def _min(x):
    return tl.min(tl.min(x, axis=0), axis=0)


@triton.jit
def _max(x):
    return tl.max(tl.max(x, axis=0), axis=0)


@triton.jit
def _kth(keys, K: tl.constexpr):
    """The K-th largest of at least K keys. `low` and `high` are elements, the answer is never outside them."""
    low = _min(keys)
    high = _max(keys)
    while low < high:
        middle = _key(0.5 * _value(low) + 0.5 * _value(high))
        halfway = ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)
        middle = tl.where((middle > low) & (middle <= high), middle, halfway)
        reached = keys >= middle
        count = _sum(reached.to(tl.int32))
        above = _min(tl.where(reached, keys, 0x7FFFFFFF))
        below = _max(tl.where(reached, LOWEST, keys))
        high = tl.where(count > K, high, tl.where(count == K, above, below))
        low = tl.where(count >= K, above, low)
    return low


@triton.jit
def _count(x, bound):
    return tl.sum(tl.sum((x >= bound).to(tl.float32), axis=0).to(tl.int32), axis=0)


@triton.jit
def _threshold(x, live, n, Z, REACH, K: tl.constexpr, WHOLE: tl.constexpr):
    """(t, between): the elements not below t are those not below the K-th largest of the n live ones, which is t unless
    t lies between two. K > n: anything.

    x [r, c], -inf where not live. Loops assign expressions to what they carry, never just another name: Triton 3.6 does
    not carry a name whose new value in its dry run is the one that it has before.
    """
    held = x if WHOLE else tl.where(live, x, 0.0)
    mean = _sum(held) / n
    squares = _sum(held * held) / n
    deviation = tl.sqrt(tl.maximum(squares - mean * mean, 0.0))
    finite = squares < float("inf")
    low = -float("inf")
    high = float("inf")
    over = n + 0  # that are not below low
    under = 0  # that are not below high, at most K
    middle = mean + Z * deviation
    stale = 0
    probes = 0
    probing = finite & (over > K)
    while probing:
        count = _count(x, middle)
        stale += ((count == over) | (count == under)).to(tl.int32)
        more = count > K
        low = tl.where(more, middle, low)
        over = tl.where(more, count, over)
        high = tl.where(more, high, middle)
        under = tl.where(more, under, count)
        # With one side unknown: as far as a normal tail says, and three elements more.
        size = tl.log(tl.maximum(count.to(tl.float32), 0.5) / K) + tl.where(more, 3.0, -3.0) / K
        outer = middle + REACH * deviation * size
        inner = low + (high - low) * ((over - K).to(tl.float32) / (over - under).to(tl.float32))
        middle = tl.where((low > -float("inf")) & (high < float("inf")), inner, outer)
        probes += 1
        probing = (under < K - 1) & (stale < 2) & (probes < PROBES) & (middle > low) & (middle < high)
    between = tl.where(under == K, 1, 0)
    steps = tl.where(finite, 0, WALK)
    while (under < K) & (steps < WALK):
        high = _max(tl.where(x < high, x, -float("inf"))) + 0.0  # no negative zero
        under = _count(x, high) if under < K - 1 else K + 0
        steps += 1
    if under < K:
        high = _value(_kth(_key(x), K))
    return high, between


@triton.jit
def filter_rows_kernel(x_ptr, out_ptr, stride, Z, REACH, WIDTH: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
                       C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    live = col < WIDTH
    if WIDTH == R * C:
        x = tl.load(x_ptr + row * stride + col, eviction_policy="evict_first")
    else:
        x = tl.load(x_ptr + row * stride + col, mask=live, other=-float("inf"), eviction_policy="evict_first")
    kth, _ = _threshold(x, live, WIDTH, Z, REACH, K, WIDTH == R * C)
    # Compared as floats: zeros are equal, and nothing is below a NaN.
    tl.store(out_ptr + row * WIDTH + col, tl.where(x < kth, -float("inf"), x), mask=live)


@triton.jit
def piece_kernel(x_ptr, best_ptr, stride, Z, REACH, WIDTH: tl.constexpr, K: tl.constexpr, R: tl.constexpr,
                 C: tl.constexpr, SLOTS: tl.constexpr, PDL: tl.constexpr):
    """best [rows, pieces, K]: the K largest values of each piece, in no order; -inf where it is shorter."""
    if PDL:
        gdc_launch_dependents()
    piece, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    col = piece * (R * C) + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    live = col < WIDTH
    x = tl.load(x_ptr + row * stride + col, mask=live, other=-float("inf"))
    n = tl.minimum(WIDTH - piece * (R * C), R * C)
    kth, between = _threshold(x, live, n, Z, REACH, K, False)
    last = tl.where(n < K, LOWEST, _key(kth) - between)  # of what lies above, all are among the best

    flat = tl.reshape(x, [R * C], can_reorder=True)
    larger = (tl.reshape(tl.where(live, _key(x), LOWEST), [R * C], can_reorder=True) > last).to(tl.int32)
    place = tl.cumsum(larger, axis=0) * larger - 1
    base = best_ptr + (row * tl.num_programs(0) + piece) * K
    tl.store(base + place, flat, mask=place >= 0)
    slot = tl.arange(0, SLOTS)
    rest = tl.where(n < K, -float("inf"), _value(last))
    tl.store(base + slot, tl.zeros([SLOTS], tl.float32) + rest, mask=(slot >= tl.sum(larger, axis=0)) & (slot < K))


@triton.jit
def filter_pieces_kernel(x_ptr, best_ptr, out_ptr, stride, Z, REACH, WIDTH: tl.constexpr, K: tl.constexpr,
                         BEST: tl.constexpr, R: tl.constexpr, C: tl.constexpr, PIECE: tl.constexpr, PDL: tl.constexpr):
    piece, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    col = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(x_ptr + row * stride + col, mask=col < WIDTH, other=0.0, eviction_policy="evict_first")
    if PDL:
        gdc_wait()
    which = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    best = tl.load(best_ptr + row * BEST + which, mask=which < BEST, other=-float("inf"))
    kth, between = _threshold(best, which < BEST, BEST, Z, REACH, K, BEST == R * C)
    if between:  # the row has elements there that are not among the best of their pieces
        kth = _min(tl.where(best >= kth, best, float("inf")))
    tl.store(out_ptr + row * WIDTH + col, tl.where(x < kth, -float("inf"), x), mask=col < WIDTH)


class Model(torch.nn.Module):
    def __init__(self, top_k: int = 50):
        super().__init__()
        self.top_k = top_k

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        rows, width = logits.shape
        k = min(self.top_k, width)
        out = torch.empty((rows, width), dtype=logits.dtype, device=logits.device)
        piece, warps, filtered, filter_warps = config(rows, width, k)
        if not piece:
            full = max(64, triton.next_power_of_2(width))
            across = min(full, 128 * warps)
            filter_rows_kernel[(rows,)](
                logits, out, logits.stride(0), *guess(k, width), WIDTH=width, K=k, R=full // across, C=across,
                num_warps=warps,
            )  # fmt: skip
            return out
        pieces = triton.cdiv(width, piece)
        best = torch.empty((rows, pieces, k), dtype=torch.float32, device=logits.device)
        piece_kernel[(pieces, rows)](
            logits, best, logits.stride(0), *guess(k, piece), WIDTH=width, K=k, R=piece // (128 * warps),
            C=128 * warps, SLOTS=triton.next_power_of_2(k), PDL=PDL, num_warps=warps,
        )  # fmt: skip
        padded = max(128 * filter_warps, triton.next_power_of_2(pieces * k))
        filter_pieces_kernel[(triton.cdiv(width, filtered), rows)](
            logits, best, out, logits.stride(0), *guess_of_best(k, pieces * k), WIDTH=width, K=k, BEST=pieces * k,
            R=padded // (128 * filter_warps), C=128 * filter_warps, PIECE=filtered, PDL=PDL, num_warps=filter_warps,
            launch_pdl=PDL,
        )  # fmt: skip
        return out
