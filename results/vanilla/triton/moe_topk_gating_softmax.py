"""Softmax over experts and top-k in registers: value and index travel in one 64-bit key, so k maxima are exact."""

import torch
import triton
import triton.language as tl


# The number of rows changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["rows"])
def topk_softmax_kernel(logits_ptr, weights_ptr, ids_ptr, rows, stride, EXPERTS: tl.constexpr, BLOCK: tl.constexpr,
                        K: tl.constexpr, K_PAD: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = (row < rows)[:, None]
    expert = tl.arange(0, BLOCK)[None, :]
    x = tl.load(logits_ptr + row.to(tl.int64)[:, None] * stride + expert, mask=live & (expert < EXPERTS),
                other=-float("inf"))
    top = tl.max(x, axis=1)
    denominator = tl.sum(tl.exp(x - top[:, None]), axis=1)

    # Flipping the magnitude bits of negative floats makes their bit patterns order like the values. The low half holds
    # the index counted from the end: the first of equal values wins, and keys are distinct.
    bits = x.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    key = (ordered.to(tl.int64) << 32) | (BLOCK - 1 - expert).to(tl.int64)
    key = tl.where(expert < EXPERTS, key, -0x7FFFFFFFFFFFFFFF)

    slot = tl.arange(0, K_PAD)[None, :]
    best = tl.zeros([ROWS, K_PAD], dtype=tl.int64)
    for k in tl.static_range(K):
        largest = tl.max(key, axis=1)[:, None]
        best = tl.where(slot == k, largest, best)
        key = tl.where(key == largest, -0x7FFFFFFFFFFFFFFF, key)

    ordered = (best >> 32).to(tl.int32)
    value = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    index = BLOCK - 1 - (best & 0x7FFFFFFF).to(tl.int32)
    weight = tl.exp(value - top[:, None]) / denominator[:, None]
    place = row.to(tl.int64)[:, None] * K + slot
    tl.store(weights_ptr + place, weight, mask=live & (slot < K))
    tl.store(ids_ptr + place, index, mask=live & (slot < K))


class Model(torch.nn.Module):
    def __init__(self, top_k: int):
        super().__init__()
        self.top_k = top_k

    def forward(self, gating_output: torch.Tensor) -> dict[str, torch.Tensor]:
        rows, experts = gating_output.shape
        weights = torch.empty((rows, self.top_k), dtype=torch.float32, device=gating_output.device)
        ids = torch.empty((rows, self.top_k), dtype=torch.int32, device=gating_output.device)
        tile = 4
        while tile > 1 and rows < 528 * tile:
            tile //= 2
        topk_softmax_kernel[(triton.cdiv(rows, tile),)](
            gating_output, weights, ids, rows, gating_output.stride(0), EXPERTS=experts,
            BLOCK=triton.next_power_of_2(experts), K=self.top_k, K_PAD=triton.next_power_of_2(self.top_k), ROWS=tile,
            num_warps=tile,
        )  # fmt: skip
        return {"topk_weights": weights, "topk_ids": ids}
