"""A linear layer whose product ends in bias, sigmoid and the gated operand; one feature is a dot product a row."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


# The number of rows changes from call to call: it must not make another specialization.
@triton.jit(do_not_specialize=["m"])
def linear_sigmoid_mul_kernel(x_desc, w_desc, bias_ptr, gated_ptr, out_ptr, m, N: tl.constexpr, K: tl.constexpr,
                              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BAND: tl.constexpr):
    # Programs that run together take BAND rows of tiles by all columns, so that both operands stay in the L2 cache.
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    band = pid // (BAND * tiles_n)
    height = tl.minimum(tiles_m - band * BAND, BAND)
    inside = pid % (BAND * tiles_n)
    tile_m = band * BAND + inside % height
    tile_n = inside // height
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, K, BLOCK_K):
        x = x_desc.load([tile_m * BLOCK_M, start])
        w = w_desc.load([tile_n * BLOCK_N, start])
        acc = tl.dot(x, w.T, acc=acc, out_dtype=tl.float32)
    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    live = (row < m)[:, None] & (col < N)[None, :]
    logit = acc + tl.load(bias_ptr + col, mask=col < N, other=0.0).to(tl.float32)[None, :]
    there = row.to(tl.int64)[:, None] * N + col[None, :]
    gated = tl.load(gated_ptr + there, mask=live, other=0.0).to(tl.float32)
    tl.store(out_ptr + there, (gated / (1.0 + tl.exp(-logit))).to(out_ptr.dtype.element_ty), mask=live)


@triton.jit
def one_feature_kernel(x_ptr, w_ptr, bias_ptr, gated_ptr, out_ptr, COLS: tl.constexpr, K: tl.constexpr,
                       WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float32)
    for start in tl.static_range(0, K, WIDTH):
        inside = start + lane < K
        x = tl.load(x_ptr + row * K + start + lane, mask=inside, other=0.0).to(tl.float32)
        total += x * tl.load(w_ptr + start + lane, mask=inside, other=0.0).to(tl.float32)
    logit = tl.sum(total, axis=0) + tl.load(bias_ptr).to(tl.float32)
    gate = 1.0 / (1.0 + tl.exp(-logit))
    for start in tl.static_range(0, COLS, WIDTH):
        inside = start + lane < COLS
        gated = tl.load(gated_ptr + row * COLS + start + lane, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + row * COLS + start + lane, (gate * gated).to(out_ptr.dtype.element_ty), mask=inside)


class Model(torch.nn.Module):
    def forward(self, hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor,
                post_mul_mat: torch.Tensor) -> torch.Tensor:
        (m, k), n, cols = hidden_states.shape, weight.shape[0], post_mul_mat.shape[1]
        out = torch.empty(post_mul_mat.shape, dtype=hidden_states.dtype, device=hidden_states.device)
        if n == 1:
            one_feature_kernel[(m,)](
                hidden_states, weight, bias, post_mul_mat, out, COLS=cols, K=k, WIDTH=2048, num_warps=8
            )
            return out
        # Few rows: the weight is what is read, so that many programs share it.
        if m > 128:
            block_m, block_n, block_k, warps, stages = 128, 256, 64, 8, 4
        else:
            block_m, block_n, block_k, warps, stages = (64 if m > 16 else 16), 32, 128, 4, 5
        linear_sigmoid_mul_kernel[(triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)](
            TensorDescriptor.from_tensor(hidden_states, [block_m, block_k]),
            TensorDescriptor.from_tensor(weight, [block_n, block_k]),
            bias, post_mul_mat, out, m, N=n, K=k, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, BAND=16,
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        return out
