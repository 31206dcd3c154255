"""LayerNorm in one pass: a program takes a tile of whole rows; mean, then squares about it, from registers."""

import torch
import triton
import triton.language as tl

EPS = tl.constexpr(1e-5)


# The number of rows changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["rows"])
def layer_norm_kernel(x_ptr, weight_ptr, bias_ptr, out_ptr, rows, stride, H: tl.constexpr, HEAD: tl.constexpr,
                      TAIL: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = (row < rows)[:, None]
    x_row = x_ptr + row.to(tl.int64)[:, None] * stride
    out_row = out_ptr + row.to(tl.int64)[:, None] * H
    dtype = out_ptr.dtype.element_ty

    # A row is a power of two plus a padded rest: 1152 = 1024 + 128 costs no idle lanes, one block of 2048 would.
    head = tl.arange(0, HEAD)[None, :]
    a = tl.load(x_row + head, mask=live, other=0.0).to(tl.float32)
    total = tl.sum(a, axis=1)
    if TAIL > 0:
        tail = HEAD + tl.arange(0, TAIL)[None, :]
        inside = tail < H
        b = tl.load(x_row + tail, mask=live & inside, other=0.0).to(tl.float32)
        total += tl.sum(b, axis=1)

    mean = (total / H)[:, None]
    a = a - mean
    squares = tl.sum(a * a, axis=1)
    if TAIL > 0:
        b = tl.where(inside, b - mean, 0.0)
        squares += tl.sum(b * b, axis=1)

    scale = tl.rsqrt(squares / H + EPS)[:, None]
    w = tl.load(weight_ptr + head).to(tl.float32)
    shift = tl.load(bias_ptr + head).to(tl.float32)
    tl.store(out_row + head, (a * scale * w + shift).to(dtype), mask=live)
    if TAIL > 0:
        w = tl.load(weight_ptr + tail, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(bias_ptr + tail, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_row + tail, (b * scale * w + shift).to(dtype), mask=live & inside)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        hidden = x.shape[-1]
        flat = x.view(-1, hidden)
        rows = flat.shape[0]
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        head = 1 << (hidden.bit_length() - 1)
        rest = hidden - head
        tail = triton.next_power_of_2(rest) if rest else 0
        # About 4096 elements a program, fewer rows while the grid would leave multiprocessors idle.
        tile = max(1, 4096 // (head + tail))
        tile = 1 << (tile.bit_length() - 1)
        while tile > 1 and rows < 264 * tile:
            tile //= 2
        warps = min(16, triton.next_power_of_2(triton.cdiv(tile * (head + tail), 1024)))
        layer_norm_kernel[(triton.cdiv(rows, tile),)](
            flat, weight, bias, out, rows, flat.stride(0), H=hidden, HEAD=head, TAIL=tail, ROWS=tile, num_warps=warps
        )
        return out
