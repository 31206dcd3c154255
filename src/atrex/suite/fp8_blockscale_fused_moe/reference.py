"""Mixture-of-experts feed-forward layer over fp8 operands with a scale per block."""

import torch
from torch import nn

BLOCK = 128


class Model(nn.Module):
    """out[t] = sum over j of topk_weights[t, j] * W2[e] @ (silu(gate) * up), e = topk_ids[t, j],
    [gate, up] = W1[e] @ x[t], where x, W1 and W2 are hidden_states, w1 and w2 times their blocks' scales.

    hidden_states [tokens, hidden] fp8 with a_scale [tokens, hidden / 128] fp32; w1 [experts, 2 * intermediate, hidden]
    fp8 (gate rows first) with fc1_scale [experts, 2 * intermediate / 128, hidden / 128]; w2 [experts, hidden,
    intermediate] fp8 with fc2_scale [experts, hidden / 128, intermediate / 128]; topk_weights [tokens, k] fp32,
    topk_ids [tokens, k] int32, distinct in a row -> out [tokens, hidden] bf16; of float64 scales, float64 throughout.
    A kernel may quantize what enters the second product to fp8 in groups of 128, as production does.
    """

    def __init__(self, num_experts: int, intermediate_size: int, top_k: int) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.intermediate_size = intermediate_size
        self.top_k = top_k

    def forward(
        self,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        a_scale: torch.Tensor,
        fc1_scale: torch.Tensor,
        fc2_scale: torch.Tensor,
    ) -> torch.Tensor:
        acc = torch.promote_types(a_scale.dtype, torch.float32)
        out = torch.zeros(hidden_states.shape, dtype=acc, device=hidden_states.device)
        experts = topk_ids.reshape(-1).long()
        # Counted in one transfer, so that no expert waits for the device.
        counts = (experts[:, None] == torch.arange(self.num_experts, device=experts.device)).sum(0).tolist()
        runs = experts.argsort(stable=True).split(counts)
        factors = topk_weights.reshape(-1, 1).to(acc)
        for expert, slots in enumerate(runs):
            if not len(slots):
                continue
            tokens = slots // self.top_k
            # fp8 has no indexing on every backend; rows are gathered as bytes.
            codes = hidden_states.view(torch.uint8)[tokens].view(hidden_states.dtype)
            x = codes.to(acc) * a_scale[tokens].to(acc).repeat_interleave(BLOCK, dim=1)
            gate, up = (x @ _dequantized(w1[expert], fc1_scale[expert].to(acc)).T).chunk(2, dim=-1)
            down = (nn.functional.silu(gate) * up) @ _dequantized(w2[expert], fc2_scale[expert].to(acc)).T
            out.index_add_(0, tokens, down * factors[slots])
        return out if acc == torch.float64 else out.to(torch.bfloat16)


def _dequantized(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[rows, cols] fp8 times [rows / 128, cols / 128], in the dtype of the scales."""
    blocks = codes.to(scales.dtype).view(scales.shape[0], BLOCK, scales.shape[1], BLOCK)
    return (blocks * scales[:, None, :, None]).view(codes.shape)
