"""Groups quantized to fp8, each at a scale of its own: a program takes a tile of whole groups, in one pass."""

import torch
import triton
import triton.language as tl


# The number of groups changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["groups"])
def per_token_group_quant_kernel(x_ptr, quantized_ptr, scales_ptr, groups, largest, SIZE: tl.constexpr,
                                 COLS: tl.constexpr, GROUPS: tl.constexpr):
    # Rows are contiguous and hold whole groups, so that groups are numbered through the whole operand.
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)
    col = tl.arange(0, COLS)[None, :]
    live = group < groups
    wanted = live[:, None]
    if COLS > SIZE:
        wanted = wanted & (col < SIZE)
    place = group[:, None] * SIZE + col
    x = tl.load(x_ptr + place, mask=wanted, other=0.0).to(tl.float32)
    # Magnitudes order like their bits, a NaN above all: it reaches the scale, as in the reference.
    top = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1).to(tl.float32, bitcast=True)
    scale = tl.div_rn(tl.maximum(top, 1e-10, propagate_nan=tl.PropagateNan.ALL), largest)
    q = x * tl.div_rn(1.0, scale)[:, None]
    tl.store(quantized_ptr + place, q.to(quantized_ptr.dtype.element_ty), mask=wanted)
    tl.store(scales_ptr + group, scale, mask=live)


class Model(torch.nn.Module):
    fp8_dtype = torch.float8_e4m3fn

    def __init__(self, group_size: int):
        super().__init__()
        self.group_size = group_size

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        tokens, hidden = x.shape
        groups = tokens * (hidden // self.group_size)
        quantized = torch.empty(x.shape, dtype=self.fp8_dtype, device=x.device)
        scales = torch.empty((tokens, hidden // self.group_size), dtype=torch.float32, device=x.device)
        cols = triton.next_power_of_2(self.group_size)
        # About 4096 elements a program, fewer groups while the grid would leave multiprocessors idle.
        tile = max(1, 4096 // cols)
        while tile > 2 and groups < 264 * tile:
            tile //= 2
        per_token_group_quant_kernel[(triton.cdiv(groups, tile),)](
            x, quantized, scales, groups, torch.finfo(self.fp8_dtype).max, SIZE=self.group_size, COLS=cols,
            GROUPS=tile, num_warps=min(16, max(1, tile * cols // 1024)),
        )  # fmt: skip
        return {"quantized": quantized, "scales": scales}
