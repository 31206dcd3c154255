"""RMSNorm in FlyDSL: a workgroup normalizes a row, which it keeps in registers between the two uses."""

import flydsl.compiler as flyc
import flydsl.expr as fx
import torch

WAVE = 64
BF16 = fx.BFloat16


@flyc.kernel
def rms_norm_kernel(
    x: fx.Pointer, weight: fx.Pointer, out: fx.Pointer, stride: fx.Int64, eps: fx.Float32,
    hidden: fx.Constexpr[int], lanes: fx.Constexpr[int], width: fx.Constexpr[int],
):  # fmt: skip
    row = fx.Int64(fx.block_idx.x)
    thread = fx.thread_idx.x
    chunk = fx.Vector[BF16, width]
    x_row, out_row = x + row * stride, out + row * fx.Int64(hidden)

    # Thread t takes the chunks t, t + lanes, ...; the last round may leave some threads without one.
    rounds = (hidden // width + lanes - 1) // lanes
    kept = []
    total = fx.Float32(0.0)
    for i in fx.range_constexpr(rounds):
        place = (thread + i * lanes) * width
        inside = place < hidden
        safe = inside.select(place, fx.Int32(0))
        values = (x_row + safe).load(chunk).to(fx.Float32)
        kept.append(values)
        total = total + inside.select((values * values).reduce(fx.ReductionOp.ADD), fx.Float32(0.0))

    step = WAVE // 2
    while fx.const_expr(step > 0):
        total = total + fx.shuffle_xor(total, step, WAVE)
        step = step // 2
    waves = lanes // WAVE
    if fx.const_expr(waves > 1):
        partial = fx.SharedAllocator().allocate(fx.Array[fx.Float32, waves]).peek()
        if thread % WAVE == 0:
            partial[thread // WAVE] = total
        fx.barrier()
        total = partial[0]
        for wave in fx.range_constexpr(1, waves):
            total = total + partial[wave]

    scale = fx.rsqrt(total / fx.Float32(float(hidden)) + eps)
    for i in fx.range_constexpr(rounds):
        place = (thread + i * lanes) * width
        if place < hidden:
            w = (weight + place).load(chunk).to(fx.Float32)
            (out_row + place).store((kept[i] * scale * w).to(BF16))


@flyc.jit
def launch(
    x: fx.Pointer, weight: fx.Pointer, out: fx.Pointer, rows: fx.Int32, stride: fx.Int64, eps: fx.Float32,
    hidden: fx.Constexpr[int], lanes: fx.Constexpr[int], width: fx.Constexpr[int], stream: fx.Stream,
):  # fmt: skip
    rms_norm_kernel(x, weight, out, stride, eps, hidden, lanes, width).launch(
        grid=(rows, 1, 1), block=(lanes, 1, 1), stream=stream
    )


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
        waves = -(-hidden // (width * WAVE))
        lanes = WAVE * min(4, 1 << (waves - 1).bit_length())

        def pointer(tensor):
            return flyc.from_c_void_p(BF16, tensor.data_ptr(), assumed_align=2 * width)

        args = (
            pointer(x), pointer(weight), pointer(out), rows, x.stride(0), self.eps, hidden, lanes, width,
            torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        key = hidden, lanes, width
        if key in COMPILED:
            COMPILED[key](*args)
        else:
            COMPILED[key] = flyc.compile(launch, *args)  # compiles and launches
        return out
