"""Five kernels in Triton: streaming, uncoalesced, spilling, tiny, tensor core."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from atrex.roofline.work import Work


@triton.jit
def streaming_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) * 1.5)


def streaming(device: str):
    """A gibibyte of bf16 scaled: read once, written once, 16 bytes a lane."""
    n, block = 2**29, 4096
    x = torch.randn(n, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(x)
    work = Work({"vector": {"fp32": n}}, 2 * n, 2 * n)
    return work, lambda: streaming_kernel[(n // block,)](x, out, BLOCK=block, num_warps=8)


@triton.jit
def uncoalesced_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    # Lanes run over rows of a row-major matrix: neighbours lie a row apart.
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1)
    value = tl.load(x + row.to(tl.int64) * columns + column)
    tl.store(out + column.to(tl.int64) * rows + row, value * 1.5)


def uncoalesced(device: str):
    """A matrix transposed without a tile: every lane of a load has a sector to itself."""
    rows, columns, block = 16384, 4096, 256
    x = torch.randn(rows, columns, device=device, dtype=torch.float32)
    out = torch.empty(columns, rows, device=device, dtype=torch.float32)
    work = Work({"vector": {"fp32": rows * columns}}, 4 * rows * columns, 4 * rows * columns)
    grid = (rows // block, columns)
    return work, lambda: uncoalesced_kernel[grid](x, out, rows, columns, BLOCK=block, num_warps=4)


@triton.jit
def spilling_kernel(x, y, out, BLOCK: tl.constexpr):
    # Both rows are needed again after both sums: 2 * BLOCK values live over few threads.
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at)
    b = tl.load(y + at)
    first = tl.sum(a * a, axis=0)
    second = tl.sum(b * b, axis=0)
    tl.store(out + at, a * tl.rsqrt(second) + b * tl.rsqrt(first))


def spilling(device: str):
    """Two rows of 32768 floats held by 128 threads: 512 registers a thread for the rows alone, and there are 255."""
    rows, block = 2048, 32768
    x = torch.randn(rows, block, device=device)
    y = torch.randn(rows, block, device=device)
    out = torch.empty_like(x)
    work = Work({"vector": {"fp32": 7 * rows * block}}, 8 * rows * block, 4 * rows * block)
    return work, lambda: spilling_kernel[(rows,)](x, y, out, BLOCK=block, num_warps=4)


@triton.jit
def tiny_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(out + at, value * tl.rsqrt(tl.sum(value * value, axis=0) / BLOCK + 1e-6))


def tiny(device: str):
    """One row of 1024 floats normalized by one block."""
    x = torch.randn(1024, device=device)
    out = torch.empty_like(x)
    return Work({"vector": {"fp32": 3 * 1024}}, 4096, 4096), lambda: tiny_kernel[(1,)](x, out, BLOCK=1024, num_warps=4)


@triton.jit
def tensor_core_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = pid // (GROUP * columns)
    size = min(rows - group * GROUP, GROUP)
    pid_m = group * GROUP + (pid % (GROUP * columns)) % size
    pid_n = (pid % (GROUP * columns)) // size
    m = pid_m * BM + tl.arange(0, BM)
    n = pid_n * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a_at = a + m[:, None] * K + k[None, :]
    b_at = b + k[:, None] * N + n[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(a_at), tl.load(b_at), total)
        a_at += BK
        b_at += BK * N
    tl.store(c + m[:, None] * N + n[None, :], total.to(c.dtype.element_ty))


def tensor_core(device: str):
    """A product of two bf16 matrices of 8192 x 8192."""
    n = 8192
    a = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    b = torch.randn(n, n, device=device, dtype=torch.bfloat16)
    c = torch.empty(n, n, device=device, dtype=torch.bfloat16)
    work = Work({"matrix": {"bf16": 2 * n**3}}, 4 * n * n, 2 * n * n)
    grid = (triton.cdiv(n, 128) * triton.cdiv(n, 256),)
    return work, lambda: tensor_core_kernel[grid](
        a, b, c, n, n, n, BM=128, BN=256, BK=64, GROUP=8, num_warps=8, num_stages=4
    )
