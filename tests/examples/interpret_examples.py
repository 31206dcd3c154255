"""Run the Triton examples in Triton's CPU interpreter against plain torch (started by test_examples_triton.py).

The interpreter computes bfloat16 on NumPy bit patterns that its reductions do not handle, and has no fp8 product, so
operands are fp32 or fp16 here; block_scaled_mm runs on fp32 operands (same indexing and scaling).
"""

import importlib.util
import json
import sys
from pathlib import Path

import interpreter_repair  # noqa: F401
import torch

FOLDER = Path(sys.argv[1])


def model(operator, *init):
    spec = importlib.util.spec_from_file_location(operator, FOLDER / f"{operator}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model(*init)


def rms(x, weight, eps=1e-6):
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def error(got, expected):
    return float(((got.double() - expected.double()).abs() / (expected.double().abs() + 0.1)).max())


def rms_norm(rows, hidden, dtype):
    x, weight = torch.randn(rows, hidden).to(dtype), torch.randn(hidden).to(dtype)
    return error(model("rms_norm", 1e-6)(x, weight), rms(x, weight))


def fused_add_rms_norm(rows, hidden, dtype):
    x, residual, weight = (torch.randn(s).to(dtype) for s in [(rows, hidden), (rows, hidden), (hidden,)])
    kept = residual.clone()
    got = model("fused_add_rms_norm", 1e-6)(x, residual, weight)
    total = x + residual
    assert torch.equal(residual, kept)
    return max(error(got["residual"], total), error(got["out"], rms(total, weight)))


def silu_and_mul(rows, width, dtype):
    x = (3 * torch.randn(rows, width)).to(dtype)
    gate, up = x.chunk(2, -1)
    return error(model("silu_and_mul")(x), torch.nn.functional.silu(gate.float()).to(dtype) * up)


def moe_topk_gating_softmax(rows, experts):
    logits = torch.randn(rows, experts).mul_(3)
    logits[0, :] = 1.0  # all tied: the first ids win
    got = model("moe_topk_gating_softmax", 8)(logits)
    weights, ids = torch.softmax(logits.double(), -1).topk(8)
    assert got["topk_ids"].dtype == torch.int32 and got["topk_ids"][0].tolist() == list(range(8))
    assert torch.equal(got["topk_ids"][1:].long(), ids[1:])
    return error(got["topk_weights"], weights)


def block_scaled_mm(m, n, k):
    a, b = torch.randn(m, k), torch.randn(n, k)
    a_scales, b_scales = torch.rand(m, k // 128) + 0.5, torch.rand(n // 128, k // 128) + 0.5
    wide_a = a.double() * a_scales.double().repeat_interleave(128, 1)
    wide_b = b.double() * b_scales.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    got = model("block_scaled_mm", 128, 128)(a, b, a_scales, b_scales)
    return float((got - wide_a @ wide_b.T).abs().max() / (wide_a @ wide_b.T).square().mean().sqrt())


def paged_attention_decode(lengths, heads, kv_heads, dim, dtype):
    x = 16 // dtype.itemsize
    pages = [-(-n // 16) for n in lengths]
    order = torch.randperm(sum(pages) + 5)
    tables = torch.full((len(lengths), max(pages) + 2), 10**6, dtype=torch.int32)
    keys = torch.full((len(order), kv_heads, dim // x, 16, x), float("nan"), dtype=dtype)
    values = torch.full((len(order), kv_heads, dim, 16), float("nan"), dtype=dtype)
    query = torch.randn(len(lengths), heads, dim).to(dtype)
    expected, used = [], 0
    for s, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        tables[s, :count] = order[used : used + count]
        used += count
        k, v = (torch.randn(length, kv_heads, dim).to(dtype) for _ in range(2))
        for t in range(length):
            page = tables[s, t // 16]
            keys[page, :, :, t % 16] = k[t].reshape(kv_heads, dim // x, x)
            values[page, :, :, t % 16] = v[t]
        k, v = (y.double().repeat_interleave(heads // kv_heads, 1) for y in (k, v))
        p = torch.softmax(torch.einsum("hd,thd->ht", query[s].double(), k) * dim**-0.5, -1)
        expected.append(torch.einsum("ht,thd->hd", p, v))
    got = model("paged_attention_decode")(query, keys, values, tables, torch.tensor(lengths, dtype=torch.int32))
    return error(got, torch.stack(expected))


torch.manual_seed(0)
half, single = torch.float16, torch.float32
print(
    json.dumps(
        {
            "rms_norm": [rms_norm(t, h, half) for t, h in [(5, 128), (3, 1152), (2, 5120), (3, 99)]],
            "fused_add_rms_norm": [fused_add_rms_norm(3, 1280, half), fused_add_rms_norm(2, 2048, single)],
            "silu_and_mul": [silu_and_mul(5, 1536, half), silu_and_mul(3, 260, single)],
            "moe_topk_gating_softmax": [moe_topk_gating_softmax(5, 128), moe_topk_gating_softmax(3, 200)],
            "block_scaled_mm": [block_scaled_mm(70, 256, 384)],
            "paged_attention_decode": [
                paged_attention_decode([1, 16, 17, 90], 10, 2, 128, half),
                paged_attention_decode([150, 128], 3, 3, 256, half),
            ],
        }
    )
)
