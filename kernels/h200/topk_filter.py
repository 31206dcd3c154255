"""Top-k filter of logits: the k-th largest is found in registers, by halving, on integer keys that order as floats do.

Keys stand in [groups' depth, groups]; the k-th largest of the groups' maxima is searched first, every probe snapped to
an element, and is at most a few distinct values below the row's k-th: full passes walk up those. Counts, minima and
maxima of integers take one instruction a warp. A row of at most 8192 is one program (one warp where rows are many), one
read and one write. Longer rows are cut into pieces: each leaves its k largest keys in a workspace, and a second launch,
whose reads mostly hit L2, selects among those and filters. Last reads leave the L2 first: what is dirty there stays.
Bound by memory, in small shapes by launches and the search.
Expected on an H200: (8179, 4096) 78 us, S 0.72; (922, 2048) 7 us, S 0.45; (32, 151936) 18 us, S 0.45.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

PDL = True  # programmatic dependent launch; off for Triton's interpreter
LOWEST = tl.constexpr(-0x80000000)  # below the key of every float


class Config(NamedTuple):
    piece: int  # of a row, in a program; 0: all of it
    depth: int  # of a group of keys
    warps: int
    filtered: int = 4096  # of a row, in a program of the second launch
    filter_warps: int = 8


def config(rows: int, width: int, k: int) -> Config:
    full = max(64, triton.next_power_of_2(width))
    if full <= max(8192, triton.next_power_of_2(k)):
        if rows >= 1500:
            return Config(0, max(1, min(8, full // 256)), max(1, full // 4096))
        return Config(0, max(1, min(4, full // 256)), max(1, full // 1024))
    piece = max(2048 if rows <= 2 else 4096, 4 * triton.next_power_of_2(k))
    return Config(piece, 8, max(1, piece // 4096), 4096 if rows <= 48 else 16384)


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
def _kth(keys, K: tl.constexpr):
    """The K-th largest of keys [n], n >= K. `low` and `high` are elements, the answer is never outside them."""
    low = tl.min(keys, axis=0)
    high = tl.max(keys, axis=0)
    while low < high:
        middle = _key(0.5 * _value(low) + 0.5 * _value(high))
        halfway = ((low.to(tl.int64) + high.to(tl.int64) + 1) >> 1).to(tl.int32)
        middle = tl.where((middle > low) & (middle <= high), middle, halfway)
        reached = keys >= middle
        count = tl.sum(reached.to(tl.int32), axis=0)
        above = tl.min(tl.where(reached, keys, 0x7FFFFFFF), axis=0)
        below = tl.max(tl.where(reached, LOWEST, keys), axis=0)
        high = tl.where(count > K, high, tl.where(count == K, above, below))
        low = tl.where(count >= K, above, low)
    return low


@triton.jit
def _threshold(keys, K: tl.constexpr):
    """The K-th largest of keys [depth, groups], groups >= K."""
    kth = _kth(tl.max(keys, axis=0), K)
    count = K
    above = kth
    while count >= K:
        kth = above
        larger = keys > kth
        count = tl.sum(tl.sum(larger.to(tl.int32), axis=0), axis=0)
        above = tl.min(tl.min(tl.where(larger, keys, 0x7FFFFFFF), axis=0), axis=0)
    return kth


@triton.jit
def filter_rows_kernel(x_ptr, out_ptr, stride, WIDTH: tl.constexpr, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + row * stride + col, mask=col < WIDTH, other=0.0, eviction_policy="evict_first")
    keys = tl.where(col < WIDTH, _key(x), LOWEST)
    kth = _value(_threshold(keys, K))
    # Compared as floats: zeros are equal, and nothing is below a NaN.
    tl.store(out_ptr + row * WIDTH + col, tl.where(x < kth, -float("inf"), x), mask=col < WIDTH)


@triton.jit
def piece_kernel(x_ptr, best_ptr, stride, WIDTH: tl.constexpr, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
                 PDL: tl.constexpr):
    """best [rows, pieces, K]: keys of the K largest values of each piece, in no order; LOWEST where it is shorter."""
    if PDL:
        gdc_launch_dependents()
    piece, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    col = piece * (R * C) + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + row * stride + col, mask=col < WIDTH, other=0.0)
    keys = tl.where(col < WIDTH, _key(x), LOWEST)
    kth = _threshold(keys, K)

    flat = tl.reshape(keys, [R * C], can_reorder=True)
    larger = (flat > kth).to(tl.int32)
    place = tl.cumsum(larger, axis=0) * larger - 1
    base = best_ptr + (row * tl.num_programs(0) + piece) * K
    tl.store(base + place, flat, mask=place >= 0)
    slot = tl.arange(0, C)
    tl.store(base + slot, tl.zeros([C], tl.int32) + kth, mask=(slot >= tl.sum(larger, axis=0)) & (slot < K))


@triton.jit
def filter_pieces_kernel(x_ptr, best_ptr, out_ptr, stride, WIDTH: tl.constexpr, K: tl.constexpr, BEST: tl.constexpr,
                         BEST_PAD: tl.constexpr, PIECE: tl.constexpr, PDL: tl.constexpr):
    piece, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    col = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(x_ptr + row * stride + col, mask=col < WIDTH, other=0.0, eviction_policy="evict_first")
    if PDL:
        gdc_wait()
    which = tl.arange(0, BEST_PAD)
    kth = _value(_kth(tl.load(best_ptr + row * BEST + which, mask=which < BEST, other=LOWEST), K))
    tl.store(out_ptr + row * WIDTH + col, tl.where(x < kth, -float("inf"), x), mask=col < WIDTH)


class Model(torch.nn.Module):
    def __init__(self, top_k: int = 50):
        super().__init__()
        self.top_k = top_k

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        rows, width = logits.shape
        k = min(self.top_k, width)
        out = torch.empty((rows, width), dtype=logits.dtype, device=logits.device)
        piece, depth, warps, filtered, filter_warps = config(rows, width, k)
        if not piece:
            full = max(64, triton.next_power_of_2(width))
            groups = max(full // depth, triton.next_power_of_2(k))
            filter_rows_kernel[(rows,)](
                logits, out, logits.stride(0), WIDTH=width, K=k, R=full // groups, C=groups, num_warps=warps
            )
            return out
        groups = max(piece // depth, triton.next_power_of_2(k))
        pieces = triton.cdiv(width, piece)
        best = torch.empty((rows, pieces, k), dtype=torch.int32, device=logits.device)
        piece_kernel[(pieces, rows)](
            logits, best, logits.stride(0), WIDTH=width, K=k, R=piece // groups, C=groups, PDL=PDL, num_warps=warps,
            maxnreg=200,  # ten one-warp programs of 4096 on a multiprocessor
        )
        filter_pieces_kernel[(triton.cdiv(width, filtered), rows)](
            logits, best, out, logits.stride(0), WIDTH=width, K=k, BEST=pieces * k,
            BEST_PAD=triton.next_power_of_2(pieces * k), PIECE=filtered, PDL=PDL, num_warps=filter_warps,
            launch_pdl=PDL,
        )  # fmt: skip
        return out
