"""Routers, experts and shared-expert gates of transformers' mixture-of-experts models, and its fp8 weights."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from benchmarks.references.registry import Case, Unsupported
from benchmarks.references.transformers_norms import hf, loaded, model, plain
from torch.nn import functional as F


@hf("moe_topk_gating_softmax", "Qwen3MoeTopKRouter")
def moe_topk_gating_softmax(case: Case) -> dict[str, torch.Tensor]:
    logits = case.inputs["gating_output"]
    experts = logits.shape[-1]
    config = SimpleNamespace(
        num_experts_per_tok=case.init["top_k"], num_experts=experts, norm_topk_prob=False, hidden_size=experts
    )
    # The router's own product with the identity leaves the logits as they are.
    router = loaded(model("qwen3_moe").Qwen3MoeTopKRouter(config), weight=torch.eye(experts, device=logits.device))
    _, weights, ids = router(logits)
    return {"topk_weights": weights, "topk_ids": ids.int()}


def experts(case: Case, gate_up: torch.Tensor, down: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
    """Qwen3MoeExperts' eager forward with these weights, in their dtype."""
    config = SimpleNamespace(
        num_experts=case.init["num_experts"],
        hidden_size=hidden.shape[-1],
        moe_intermediate_size=case.init["intermediate_size"],
        hidden_act="silu",
        _experts_implementation="eager",
    )
    with torch.device("meta"):
        layer = model("qwen3_moe").Qwen3MoeExperts(config)
    layer = loaded(layer, gate_up_proj=gate_up, down_proj=down)
    forward = plain(type(layer).forward)
    return forward(layer, hidden, case.inputs["topk_ids"].long(), case.inputs["topk_weights"])


@hf("fused_moe", "Qwen3MoeExperts", note="in float32")
def fused_moe(case: Case) -> torch.Tensor:
    return experts(case, *(case.inputs[n].float() for n in ("w1", "w2", "hidden_states")))


def dequantized(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[..., rows, cols] fp8 and a scale a block, as transformers widens its checkpoints to float32."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    return Fp8Dequantize(None)._dequantize_one(codes, scales, torch.float32)


@hf("fp8_blockscale_fused_moe", "Qwen3MoeExperts over Fp8Dequantize", note="in float32")
def fp8_blockscale_fused_moe(case: Case) -> torch.Tensor:
    pairs = (("w1", "fc1_scale"), ("w2", "fc2_scale"), ("hidden_states", "a_scale"))
    return experts(case, *(dequantized(case.inputs[c], case.inputs[s]) for c, s in pairs)).to(torch.bfloat16)


@hf("block_scaled_mm", "Fp8Dequantize, then F.linear", note="in float32")
def block_scaled_mm(case: Case) -> torch.Tensor:
    a, b, a_scales, b_scales = (case.inputs[n] for n in ("a", "b", "a_scales", "b_scales"))
    return F.linear(dequantized(a, a_scales), dequantized(b, b_scales))


@hf("linear_sigmoid_mul", "shared-expert gate of Qwen3NextSparseMoeBlock", note="in float32")
def linear_sigmoid_mul(case: Case) -> torch.Tensor:
    x, weight, bias, other = (case.inputs[n] for n in ("hidden_states", "weight", "bias", "post_mul_mat"))
    if len(weight) != 1:
        raise Unsupported("has one feature")
    gate = torch.nn.Linear(x.shape[1], 1)
    # The block adds its experts' output, here zero, to the gated output of the shared expert.
    block = SimpleNamespace(
        shared_expert=lambda _: other.float(),
        gate=lambda _: (None, None, None),
        experts=lambda *_: torch.zeros_like(other, dtype=torch.float32),
        shared_expert_gate=loaded(gate, weight=weight.float(), bias=bias.float()),
    )
    forward = model("qwen3_next").Qwen3NextSparseMoeBlock.forward
    return _flat(forward(block, _Row(x.float(), other)), other)


class _Row:
    """x as the block takes it; its result is shaped like `other`, whose width is not x's."""

    def __init__(self, x: torch.Tensor, other: torch.Tensor) -> None:
        self.x, self.shape = x, (1, *other.shape)

    def view(self, *_: int) -> torch.Tensor:
        return self.x


def _flat(out: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return out.reshape(other.shape).to(other.dtype)
