"""Small Gluon kernels with the parts that larger ones are made of, to be broken one by one."""

# Sums of x @ w.T, a program a tile of 64 columns: one warp copies by TMA into a ring, a warpgroup multiplies.
RING = """
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

SLOTS = 3

@gluon.jit
def copy(x, w, xs, ws, full, empty, col, blocks: gl.constexpr):
    phase = 1
    slot = 0
    for block in range(blocks):
        mbarrier.wait(empty.index(slot), phase)
        mbarrier.expect(full.index(slot), x.block_type.nbytes + w.block_type.nbytes)
        tma.async_copy_global_to_shared(x, [0, block * 64], full.index(slot), xs.index(slot))
        tma.async_copy_global_to_shared(w, [col, block * 64], full.index(slot), ws.index(slot))
        last = slot == xs.shape[0] - 1
        slot, phase = gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)

@gluon.jit
def multiply(xs, ws, full, empty, staged, out, out_ptr, rows, N: gl.constexpr, col, blocks: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    sums = gl.zeros([64, 64], gl.float32, layout=layout)
    phase = 0
    slot = 0
    for block in range(blocks):
        mbarrier.wait(full.index(slot), phase)
        sums = warpgroup_mma(xs.index(slot), ws.index(slot).permute((1, 0)), sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(empty.index(slot))
        last = slot == xs.shape[0] - 1
        slot, phase = gl.where(last, 0, slot + 1), gl.where(last, phase ^ 1, phase)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))[:, None]
    inside = col + gl.arange(0, 64, layout=gl.SliceLayout(0, layout))[None, :]
    gl.store(out_ptr + row * N + inside, sums, mask=(row < rows) & (inside < N))
    staged.store(sums)
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [0, col], staged)
    tma.store_wait(0)

@gluon.jit
def kernel(x, w, out, out_ptr, rows, N: gl.constexpr, blocks: gl.constexpr, SLOTS: gl.constexpr):
    xs = gl.allocate_shared_memory(x.dtype, [SLOTS, 64, 64], x.layout)
    ws = gl.allocate_shared_memory(w.dtype, [SLOTS, 64, 64], w.layout)
    staged = gl.allocate_shared_memory(gl.float32, [64, 64], out.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    col = gl.program_id(0) * 64
    gl.warp_specialize([
        (multiply, (xs, ws, full, empty, staged, out, out_ptr, rows, N, col, blocks)),
        (copy, (x, w, xs, ws, full, empty, col, blocks)),
    ], [1], [24])

def run(x, w):
    (rows, k), n = x.shape, w.shape[0]
    both = [torch.empty((rows, n), dtype=torch.float32) for _ in range(2)]
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    kernel[(triton.cdiv(n, 64),)](
        TensorDescriptor.from_tensor(x, [64, 64], layout), TensorDescriptor.from_tensor(w, [64, 64], layout),
        TensorDescriptor.from_tensor(both[1], [64, 64], layout), both[0], rows, N=n, blocks=triton.cdiv(k, 64),
        SLOTS=SLOTS, num_warps=4)
    return both
"""

# Sums of x @ w.T again, by cp.async into two buffers; then a second kernel, launched early, adds a row of it up.
GROUPS = """
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy, fence_async_shared, warpgroup_mma, warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

@gluon.jit
def start(xs, ws, x_ptr, w_ptr, rows, block, blocks, K: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    line = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))[:, None]
    k = block * 64 + gl.arange(0, 64, layout=gl.SliceLayout(0, layout))[None, :]
    live = (line < rows) & (k < K)
    if block < blocks:
        async_copy.async_copy_global_to_shared(xs.index(block % 2), x_ptr + line * K + k, mask=live)
        async_copy.async_copy_global_to_shared(ws.index(block % 2), w_ptr + line * K + k, mask=k < K)
    async_copy.commit_group()

@gluon.jit
def products(x_ptr, w_ptr, out_ptr, rows, K: gl.constexpr, blocks: gl.constexpr):
    gdc_launch_dependents()
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    shared: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    xs = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], shared)
    ws = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], shared)
    sums = gl.zeros([64, 64], gl.float32, layout=layout)
    start(xs, ws, x_ptr, w_ptr, rows, 0, blocks, K)
    for block in range(blocks):
        start(xs, ws, x_ptr, w_ptr, rows, block + 1, blocks, K)
        async_copy.wait_group(1)
        fence_async_shared()
        more = warpgroup_mma(xs.index(block % 2), ws.index(block % 2).permute((1, 0)), sums, is_async=True)
        sums = warpgroup_mma_wait(0, deps=[more])
    async_copy.wait_group(0)
    row = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))[:, None]
    col = gl.arange(0, 64, layout=gl.SliceLayout(0, layout))[None, :]
    gl.store(out_ptr + row * 64 + col, sums, mask=row < rows)

@gluon.jit
def add_up(in_ptr, out_ptr):
    row = gl.program_id(0)
    col = gl.arange(0, 64, layout=gl.BlockedLayout([2], [32], [1], [0]))
    gdc_wait()
    gl.store(out_ptr + row, gl.sum(gl.load(in_ptr + row * 64 + col), axis=0))

def run(x, w):
    rows, k = x.shape
    parts = torch.empty((rows, 64), dtype=torch.float32)
    out = torch.empty((rows,), dtype=torch.float32)
    products[(1,)](x, w, parts, rows, K=k, blocks=triton.cdiv(k, 64), num_warps=4)
    add_up[(rows,)](parts, out, num_warps=1, launch_pdl=True)
    return parts, out
"""

# Integers and floats of every kind meet: what Triton's own interpreter makes of it is what the emulator should.
ARITHMETIC = """
import torch
import triton
import triton.language as tl

@triton.jit
def pick(a, b, c, d):
    return tl.minimum(a, c), b + d

@triton.jit
def kernel(i_ptr, f_ptr, h_ptr, ints_ptr, floats_ptr, n, N: tl.constexpr):
    at = tl.arange(0, N)
    i = tl.load(i_ptr + at, mask=at < n, other=-1)
    f = tl.load(f_ptr + at, mask=at < n, other=0.5)
    h = tl.load(h_ptr + at, mask=at < n, other=2.0)
    tl.store(ints_ptr + at, i // 7)
    tl.store(ints_ptr + N + at, i % 7)
    tl.store(ints_ptr + 2 * N + at, i * 1000003)
    tl.store(ints_ptr + 3 * N + at, (i.to(tl.int64) * 1000003 >> 20).to(tl.int32))
    tl.store(ints_ptr + 4 * N + at, f.to(tl.int32, bitcast=True) ^ (i << 3))
    tl.store(ints_ptr + 5 * N + at, (f * 10).to(tl.int32))
    tl.store(ints_ptr + 6 * N + at, tl.cumsum(i, 0))
    tl.store(ints_ptr + 7 * N + at, tl.sort(i))
    tl.store(ints_ptr + 8 * N + at, tl.gather(i, N - 1 - at, axis=0))
    tl.store(ints_ptr + 9 * N + at, tl.histogram(at // 3, N))
    tl.store(ints_ptr + 10 * N + at, tl.zeros([N], tl.int32) + tl.sum((i > 3).to(tl.int1), axis=0))
    tl.store(ints_ptr + 11 * N + at, tl.where(f > h, i, at) & 0x7FFF)
    a, b = tl.split(tl.reshape(i, [N // 2, 2]))
    tl.store(ints_ptr + 12 * N + at, tl.reshape(tl.join(b, a), [N]))
    square = tl.reshape(i, [4, N // 4])
    tl.store(ints_ptr + 13 * N + tl.arange(0, N // 4), tl.max(square, axis=0))
    tl.store(ints_ptr + 14 * N + at, tl.reshape(tl.trans(square), [N]))
    tl.store(floats_ptr + at, i / 7)
    tl.store(floats_ptr + N + at, h / 3 + h * h)
    tl.store(floats_ptr + 2 * N + at, f * h - i)
    tl.store(floats_ptr + 3 * N + at, tl.maximum(f, h.to(tl.float32)))
    tl.store(floats_ptr + 4 * N + at, (f * 1000).to(tl.float16).to(tl.float32))
    low, sums = tl.reduce((tl.reshape(f, [4, N // 4]), tl.reshape(i, [4, N // 4])), 0, pick)
    tl.store(floats_ptr + 5 * N + tl.arange(0, N // 4), low)
    tl.store(ints_ptr + 15 * N + tl.arange(0, N // 4), sums)
    falling, sums = tl.associative_scan((f, i), 0, pick)
    tl.store(floats_ptr + 8 * N + at, falling)
    tl.store(ints_ptr + 16 * N + at, sums)
    tl.store(floats_ptr + 6 * N + at, -f if n > 5 else f)
    for j in range(0, n, 2):
        tl.store(floats_ptr + 7 * N + j, f_ptr.dtype.element_ty == tl.float32 and j)

def run():
    g = torch.Generator().manual_seed(0)
    i = torch.randint(-500, 500, (27,), generator=g, dtype=torch.int32)
    f, h = torch.randn(27, generator=g), torch.randn(27, generator=g).half()
    ints, floats = torch.zeros((17, 32), dtype=torch.int32), torch.zeros((9, 32))
    kernel[(1,)](i, f, h, ints, floats, 27, N=32)
    return ints, floats
"""
