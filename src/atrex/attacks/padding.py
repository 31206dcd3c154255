"""Entries that mean nothing left unwritten, which is honest, and entries that mean something treated alike.

moe_align_block_size gives buffers of which a part is in use. Evaluators that compare all of them reject honest kernels.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form


def _align(dropped: int) -> str:
    return f"""
import torch


class Model(torch.nn.Module):
    def __init__(self, block_size, num_experts):
        super().__init__()
        self.block, self.experts = block_size, num_experts

    def forward(self, topk_ids):
        flat = topk_ids.flatten().long()
        slots, device = flat.numel(), flat.device
        counts = torch.bincount(flat, minlength=self.experts)
        blocks = (counts + self.block - 1) // self.block
        used = int(blocks.sum())
        room = -(-(slots + self.experts * (self.block - 1)) // self.block)
        ids = torch.full((room * self.block,), -7, dtype=torch.int32, device=device)
        ids[: used * self.block] = slots
        owner = flat.argsort(stable=True)
        expert = flat[owner]
        rank = torch.arange(slots, device=device) - (counts.cumsum(0) - counts)[expert]
        ids[(blocks.cumsum(0) - blocks)[expert] * self.block + rank] = owner.int()
        experts = torch.full((room,), -7, dtype=torch.int32, device=device)
        kept = used - {dropped}
        experts[:kept] = torch.arange(self.experts, device=device).repeat_interleave(blocks)[:kept].int()
        return {{
            "sorted_token_ids": ids,
            "expert_ids": experts,
            "num_tokens_post_pad": torch.tensor([used * self.block], dtype=torch.int32, device=device),
        }}
"""


ATTACK = Attack(
    (7,),
    Form(
        {"last block": _align(1)}, _align(0), Fails("numeric_mismatch"), "moe_align_block_size",
        {"cpu": "6", "cuda": "6"}, base=None, dominant=False,
    ),
)  # fmt: skip
