"""RMSNorm in CuTe DSL: a block normalizes a row, which it keeps in registers between the two uses."""

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import make_ptr

WARP = 32


@cute.kernel
def rms_norm_kernel(
    x: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, eps: cutlass.Float32,
    hidden: cutlass.Constexpr, threads: cutlass.Constexpr, width: cutlass.Constexpr,
):  # fmt: skip
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    vector = cute.make_layout(width)
    x_row = cute.logical_divide(x[(row, None)], vector)
    out_row = cute.logical_divide(out[(row, None)], vector)
    w_row = cute.logical_divide(weight, vector)

    # Thread t takes the vectors t, t + threads, ...; the last round may leave some threads without one.
    count = hidden // width
    rounds = (count + threads - 1) // threads
    kept = cute.make_rmem_tensor((width, rounds), cutlass.Float32)
    for i in cutlass.range_constexpr(rounds):
        place = thread + i * threads
        if place < count:
            kept[(None, i)].store(x_row[(None, place)].load().to(cutlass.Float32))
        else:
            kept[(None, i)].fill(0.0)
    values = kept.load()
    total = (values * values).reduce(cute.ReductionOp.ADD, init_val=0.0, reduction_profile=0)

    for i in cutlass.range_constexpr(WARP.bit_length() - 1):
        total = total + cute.arch.shuffle_sync_bfly(total, offset=WARP >> (i + 1))
    warps = threads // WARP
    if cutlass.const_expr(warps > 1):
        partial = cutlass.utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(warps))
        if thread % WARP == 0:
            partial[thread // WARP] = total
        cute.arch.sync_threads()
        total = partial[0]
        for i in cutlass.range_constexpr(1, warps):
            total = total + partial[i]

    scale = cute.math.rsqrt(total / hidden + eps)
    for i in cutlass.range_constexpr(rounds):
        place = thread + i * threads
        if place < count:
            w = w_row[(None, place)].load().to(cutlass.Float32)
            out_row[(None, place)].store((kept[(None, i)].load() * scale * w).to(out.element_type))


@cute.jit
def launch(
    x: cute.Pointer, weight: cute.Pointer, out: cute.Pointer, rows: cutlass.Int32, eps: cutlass.Float32,
    hidden: cutlass.Constexpr, stride: cutlass.Constexpr, threads: cutlass.Constexpr, width: cutlass.Constexpr,
    stream: cuda.CUstream,
):  # fmt: skip
    rms_norm_kernel(
        cute.make_tensor(x, cute.make_layout((rows, hidden), stride=(stride, 1))),
        cute.make_tensor(weight, cute.make_layout(hidden)),
        cute.make_tensor(out, cute.make_layout((rows, hidden), stride=(hidden, 1))),
        eps, hidden, threads, width,
    ).launch(grid=(rows, 1, 1), block=(threads, 1, 1), stream=stream)  # fmt: skip


COMPILED = {}


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows, hidden = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        # As many elements a load, up to 16 bytes, as the row, its stride and the addresses allow.
        width = 8
        while hidden % width or x.stride(0) % width or (x.data_ptr() | weight.data_ptr()) % (2 * width):
            width //= 2
        warps = -(-hidden // (width * WARP))
        threads = WARP * min(8, 1 << (warps - 1).bit_length())

        def pointer(tensor):
            return make_ptr(cutlass.BFloat16, tensor.data_ptr(), cute.AddressSpace.gmem, assumed_align=2 * width)

        stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
        pointers = pointer(x), pointer(weight), pointer(out)
        key = hidden, x.stride(0), threads, width
        if key not in COMPILED:
            COMPILED[key] = cute.compile(launch, *pointers, rows, self.eps, *key, stream)
        COMPILED[key](*pointers, rows, self.eps, stream)
        return out
