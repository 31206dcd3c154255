"""One kernel in Gluon, where the layout of shared memory is the author's: bank conflicts."""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from atrex.roofline.work import Work


@gluon.jit
def bank_conflict_kernel(x, out, ROUNDS: gl.constexpr, SIZE: gl.constexpr):
    # Written row by row, read column by column: the 32 lanes of a load lie SIZE floats apart, all in one bank.
    by_row: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    by_column: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    tile = gl.program_id(0).to(gl.int64) * SIZE * SIZE
    row = gl.arange(0, SIZE, layout=gl.SliceLayout(1, by_row))[:, None]
    column = gl.arange(0, SIZE, layout=gl.SliceLayout(0, by_row))[None, :]
    value = gl.load(x + tile + row * SIZE + column)
    shared = gl.allocate_shared_memory(gl.float32, [SIZE, SIZE], plain)
    total = gl.zeros([SIZE, SIZE], gl.float32, layout=by_column)
    for _ in range(ROUNDS):
        shared.store(value)
        total += shared.load(by_column)
        value = value * 0.999 + 0.001
    row = gl.arange(0, SIZE, layout=gl.SliceLayout(1, by_column))[:, None]
    column = gl.arange(0, SIZE, layout=gl.SliceLayout(0, by_column))[None, :]
    gl.store(out + tile + column * SIZE + row, total)


def bank_conflicted(device: str):
    """Tiles of 64 x 64 floats through unswizzled shared memory 64 times, transposed on the way."""
    tiles, size, rounds = 2048, 64, 64
    x = torch.randn(tiles, size, size, device=device)
    out = torch.empty_like(x)
    n = x.numel()
    work = Work({"vector": {"fp32": 3 * rounds * n}}, 4 * n, 4 * n)
    return work, lambda: bank_conflict_kernel[(tiles,)](x, out, ROUNDS=rounds, SIZE=size, num_warps=4)
