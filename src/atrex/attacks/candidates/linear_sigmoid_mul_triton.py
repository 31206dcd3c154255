"""linear_sigmoid_mul in Triton for as many features as columns: a tile of the product a program, gated at its end."""

import torch
import triton
import triton.language as tl


@triton.jit
def linear_sigmoid_mul_kernel(
    hidden_ptr, weight_ptr, bias_ptr, post_ptr, out_ptr, tokens, features, SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    feature = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    deep = tl.arange(0, BLOCK_K)
    live, known = (token < tokens)[:, None], (feature < features)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, SIZE, BLOCK_K):
        left = tl.load(hidden_ptr + token[:, None] * SIZE + (start + deep)[None, :], mask=live, other=0.0)
        right = tl.load(weight_ptr + feature[None, :] * SIZE + (start + deep)[:, None], mask=known, other=0.0)
        total += tl.dot(left, right)
    total += tl.load(bias_ptr + feature, mask=feature < features, other=0.0).to(tl.float32)[None, :]
    place = token[:, None] * features + feature[None, :]
    post = tl.load(post_ptr + place, mask=live & known, other=0.0).to(tl.float32)
    gated = post / (1.0 + tl.exp(-total))
    tl.store(out_ptr + place, gated.to(out_ptr.dtype.element_ty), mask=live & known)


@triton.jit
def gate_kernel(logits_ptr, bias_ptr, post_ptr, out_ptr, count, features, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    logits = tl.load(logits_ptr + place, mask=inside, other=0.0)
    logits += tl.load(bias_ptr + place % features, mask=inside, other=0.0).to(tl.float32)
    post = tl.load(post_ptr + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + place, (post / (1.0 + tl.exp(-logits))).to(out_ptr.dtype.element_ty), mask=inside)


def gate(logits, bias, post):
    """sigmoid(logits + bias) * post, from float32 logits."""
    out = torch.empty_like(post)
    gate_kernel[(triton.cdiv(post.numel(), 1024),)](logits, bias, post, out, post.numel(), post.shape[1], BLOCK=1024)
    return out


def linear_sigmoid_mul(hidden, weight, bias, post):
    (tokens, size), features = hidden.shape, weight.shape[0]
    out = torch.empty_like(post)
    grid = (triton.cdiv(tokens, 64), triton.cdiv(features, 64))
    linear_sigmoid_mul_kernel[grid](
        hidden, weight, bias, post, out, tokens, features, SIZE=size, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64
    )
    return out


class Model(torch.nn.Module):
    def forward(
        self, hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, post_mul_mat: torch.Tensor
    ) -> torch.Tensor:
        return linear_sigmoid_mul(hidden_states, weight, bias, post_mul_mat)
