"""Top-k filter of logits by selection, without sorting.

A row that fits one program is selected and filtered in registers. A longer one is cut into pieces: each leaves its k
largest values in a workspace of this call, and a second kernel selects among those and filters the pieces.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _count(wanted):
    return tl.sum(wanted.to(tl.int32))


@triton.jit
def _threshold(x, K: tl.constexpr):
    """A number that exactly those elements of x reach that reach the k-th largest; no NaN in x, at least k elements.

    x [r, c] with c >= k: the smallest of the columns' maxima has c elements at or over it, a first lower bound. Halving
    the interval ends as soon as just k elements lie above; ties, infinities and neighbours are left to a second loop,
    which goes down from one distinct value to the next, at most k times.
    """
    tops = tl.max(x, axis=0)
    low, high = tl.min(tops), tl.max(tops)
    low = tl.where(_count(x >= high) >= K, high, low)
    step = 0
    middle = low + 0.5 * (high - low)
    while (middle > low) & (middle < high) & (step < 12):
        reached = _count(x >= middle)
        high = tl.where(reached <= K, middle, high)
        low = tl.where(reached >= K, middle, low)
        middle = low + 0.5 * (high - low)
        step += 1
    # Either low is the answer and equal to high, or fewer than k elements are at or over high.
    kth = low
    reached = tl.where(low < high, 0, K)
    while reached < K:
        high = tl.max(tl.where(x < high, x, -float("inf")))
        kth = high
        reached = _count(x >= high)
    return kth


@triton.jit
def _orderly(x):
    """NaN counts as the largest number, as in torch.topk."""
    return tl.where(x == x, x, float("inf"))


@triton.jit
def filter_rows_kernel(x_ptr, out_ptr, stride, WIDTH: tl.constexpr, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    raw = tl.load(x_ptr + row * stride + col, mask=col < WIDTH, other=-float("inf"))
    x = _orderly(raw)
    kth = _threshold(x, K)
    # No logit is below a NaN: where the k-th largest is one, all stay.
    if kth == float("inf"):
        kth = tl.where(_count(raw != raw) >= K, -float("inf"), kth)
    tl.store(out_ptr + row * WIDTH + col, tl.where(x >= kth, raw, -float("inf")), mask=col < WIDTH)


@triton.jit
def piece_kernel(x_ptr, best_ptr, stride, WIDTH: tl.constexpr, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """best [rows, pieces, K]: the K largest values of each piece, in no order; -inf where the piece is shorter."""
    piece, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    col = piece * (R * C) + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    raw = tl.load(x_ptr + row * stride + col, mask=col < WIDTH, other=-float("inf"))
    kth = _threshold(_orderly(raw), K)

    flat = tl.reshape(raw, (R * C,), can_reorder=True)
    above = _orderly(flat) > kth
    place = tl.cumsum(above.to(tl.int32), axis=0) - 1
    base = best_ptr + (row * tl.num_programs(0) + piece) * K
    tl.store(base + place, flat, mask=above)
    # What is left to fill equals the threshold; a NaN was taken for infinity and is still told from it here.
    strange = 0
    if kth == float("inf"):
        strange = _count(raw != raw)
    slot = tl.arange(0, C)
    rest = tl.where(slot < strange, float("nan"), kth)
    tl.store(base + slot, rest, mask=(slot >= _count(above)) & (slot < K))


@triton.jit
def filter_pieces_kernel(x_ptr, best_ptr, out_ptr, stride, WIDTH: tl.constexpr, K: tl.constexpr, PIECES: tl.constexpr,
                         R: tl.constexpr, C: tl.constexpr, PIECE: tl.constexpr):
    piece, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    col = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(x_ptr + row * stride + col, mask=col < WIDTH, other=-float("inf"))

    which = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    best = tl.load(best_ptr + row * (PIECES * K) + which, mask=which < PIECES * K, other=-float("inf"))
    kth = _threshold(_orderly(best), K)
    if kth == float("inf"):
        kth = tl.where(_count(best != best) >= K, -float("inf"), kth)
    tl.store(out_ptr + row * WIDTH + col, tl.where(_orderly(x) >= kth, x, -float("inf")), mask=col < WIDTH)


class Model(torch.nn.Module):
    def __init__(self, top_k: int = 50):
        super().__init__()
        self.top_k = top_k

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        rows, width = logits.shape
        k = min(self.top_k, width)
        out = torch.empty((rows, width), dtype=logits.dtype, device=logits.device)
        columns = max(32, triton.next_power_of_2(k))
        if width <= max(8192, columns):
            height = triton.next_power_of_2(triton.cdiv(width, columns))
            filter_rows_kernel[(rows,)](
                logits, out, logits.stride(0), WIDTH=width, K=k, R=height, C=columns,
                num_warps=min(16, max(1, height * columns // 1024)),
            )  # fmt: skip
            return out
        # Few rows are cut finer, so that more multiprocessors read them.
        piece = max(4096 if rows < 8 else 8192, 4 * columns)
        pieces = triton.cdiv(width, piece)
        best = torch.empty((rows, pieces, k), dtype=logits.dtype, device=logits.device)
        piece_kernel[(pieces, rows)](
            logits, best, logits.stride(0), WIDTH=width, K=k, R=piece // columns, C=columns, num_warps=8
        )
        filter_pieces_kernel[(pieces, rows)](
            logits, best, out, logits.stride(0), WIDTH=width, K=k, PIECES=pieces,
            R=triton.next_power_of_2(triton.cdiv(pieces * k, columns)), C=columns, PIECE=piece, num_warps=8,
        )  # fmt: skip
        return out
