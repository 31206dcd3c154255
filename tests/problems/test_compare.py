"""What the comparison accepts and rejects, on the shipped problems at small shapes."""

import pytest
import torch

from atrex.errors import UserError
from atrex.problems import compare_float
from atrex.problems.compare import compare, declared, oracle, published_check
from atrex.problems.compare_float import float_ratio, published_agrees, published_ratio
from atrex.problems.metadata import FloatCompare, PublishedCompare
from atrex.problems.model import Shape

FLOAT = FloatCompare(kind="float")


class Case:
    """One set of inputs of an operator with its expected outputs."""

    def __init__(self, problem, shape, inputs):
        self.problem, self.shape, self.inputs = problem, shape, inputs
        self.oracle, self.declared = oracle(problem, shape, inputs), declared(problem, shape, inputs)

    def judge(self, **outputs):
        return compare(self.problem, self.shape, self.inputs, self.oracle, self.declared, {**self.declared, **outputs})


def drawn(suite, operator, init, corner=None, **kwargs):
    problem = suite.problem(operator)
    shape = Shape("t", init, kwargs)
    if corner:
        return Case(problem, shape, problem.corner_cases(shape, 7, "cpu")[corner]())
    return Case(problem, shape, problem.make_inputs(shape, 7, "cpu"))


@pytest.fixture
def norm(suite):
    return drawn(suite, "rms_norm", {"eps": 1e-6}, token_count=40, hidden_size=5120)


@pytest.fixture
def topk(suite):
    return drawn(suite, "moe_topk_gating_softmax", {"top_k": 8}, token_count=33, num_experts=128)


def matmul(suite, corner=None, m=32, k=4096):
    kwargs = {"m": m, "n": 128, "k": k, "group_n": 128, "group_k": 128}
    return drawn(suite, "block_scaled_mm", {"group_n": 128, "group_k": 128}, corner, **kwargs)


def dequantized(case):
    a = case.inputs["a"].float() * case.inputs["a_scales"].repeat_interleave(128, 1)
    b = case.inputs["b"].float() * case.inputs["b_scales"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    return a, b


# ---- honest kernels pass


def test_norm_with_a_bf16_intermediate_passes(norm):
    x = norm.inputs["x"].float()
    normed = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).bfloat16()
    result = norm.judge(out=normed * norm.inputs["weight"])
    assert result.passed and 0 < result.worst < 1


def test_add_norm_that_skips_the_rounding_of_the_sum_passes(suite):
    case = drawn(suite, "fused_add_rms_norm", {"eps": 1e-6}, token_count=40, hidden_size=2048)
    total = case.inputs["x"].float() + case.inputs["residual"].float()
    out = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * case.inputs["weight"].float()
    assert case.judge(out=out.bfloat16()).passed


def test_silu_that_skips_the_rounding_of_the_gate_passes(suite):
    case = drawn(suite, "silu_and_mul", {}, shape=[40, 2048])
    gate, up = case.inputs["x"].float().chunk(2, -1)
    assert case.judge(out=(torch.nn.functional.silu(gate) * up).bfloat16()).passed


def test_attention_with_bf16_probabilities_passes(suite):
    kwargs = {"num_query_heads": 8, "num_kv_heads": 2, "head_size": 128, "block_size": 16, "dtype": "bf16"}
    case = drawn(suite, "paged_attention_decode", {}, num_seqs=6, ctx_len=100, **kwargs)
    model = case.problem.reference(case.shape)
    softmax = torch.softmax
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "softmax", lambda x, dim: softmax(x, dim).bfloat16().to(x.dtype))
        out = model(**case.inputs)
    assert not torch.equal(out, case.declared["out"])
    assert case.judge(out=out).passed


@pytest.mark.parametrize("corner", [None, "same_sign"])
def test_matmul_with_promotion_of_a_14_bit_accumulator_passes(suite, corner):
    """As Hopper's fp8 tensor cores: 14 bits, truncated, promoted to fp32 every 128 products."""
    case = matmul(suite, corner)
    a, b = dequantized(case)
    total = torch.zeros(a.shape[0], b.shape[0])
    for block in range(0, a.shape[1], 128):
        partial = torch.zeros_like(total)
        for step in range(block, block + 128, 32):
            partial += a[:, step : step + 32] @ b[:, step : step + 32].T
            mantissa, exponent = torch.frexp(partial)
            partial = torch.ldexp((mantissa * 2**14).trunc() / 2**14, exponent)
        total += partial
    assert case.judge(out=total).passed


def test_matmul_rounded_to_bf16_on_the_way_out_passes(suite):
    case = matmul(suite, "same_sign")
    assert case.judge(out=case.declared["out"].bfloat16().float()).passed


def test_topk_that_breaks_ties_the_other_way_passes(topk):
    logits = topk.inputs["gating_output"].flip(-1)
    weights, ids = torch.softmax(logits, -1).topk(8, dim=-1)
    ids = (127 - ids).int()
    assert not torch.equal(ids, topk.declared["topk_ids"]), "the inputs hold no tie"
    assert topk.judge(topk_weights=weights, topk_ids=ids).passed


# ---- wrong ones fail


def test_norm_with_a_constant_factor_fails(norm):
    x, weight = norm.inputs["x"].float(), norm.inputs["weight"].float()
    factor = torch.rsqrt(x.square().mean())
    assert not norm.judge(out=(x * factor * weight).bfloat16()).passed


def test_norm_without_weight_fails(norm):
    x = norm.inputs["x"].float()
    assert not norm.judge(out=(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).bfloat16()).passed


def test_norm_without_eps_fails_on_small_rows(suite):
    case = drawn(suite, "rms_norm", {"eps": 1e-6}, "small_rows", token_count=1, hidden_size=1024)
    x = case.inputs["x"].float()
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True)).nan_to_num(posinf=0)
    assert not case.judge(out=(x * scale * case.inputs["weight"].float()).bfloat16()).passed


def test_norm_in_fp16_fails_on_large_rows(suite):
    case = drawn(suite, "rms_norm", {"eps": 1e-6}, "large_rows", token_count=1, hidden_size=1024)
    x = case.inputs["x"].half()
    out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * case.inputs["weight"].half()
    assert not case.judge(out=out.bfloat16()).passed


def test_one_wrong_element_fails_and_is_named(norm):
    out = norm.declared["out"].clone()
    out[17, 4001] += 1
    result = norm.judge(out=out)
    assert not result.passed and result.index == [17, 4001] and result.output == "out"
    assert result.got == pytest.approx(result.expected + 1, abs=0.05)
    assert result.error / result.bound == pytest.approx(result.worst)


def test_error_spread_thinly_over_one_row_fails_by_the_row_rule(norm):
    out = norm.declared["out"].clone()
    out[5] *= 1.03
    result = norm.judge(out=out)
    assert not result.passed and result.detail == "row RMS" and result.index[0] == 5


@pytest.mark.parametrize("corner", [None, "same_sign"])
@pytest.mark.parametrize("k", [2048, 4096])
def test_fp16_accumulation_over_k_fails(suite, k, corner):
    case = matmul(suite, corner, k=k)
    a, b = dequantized(case)
    scale = case.oracle["out"].abs().max() / 30000  # keep the sums inside float16's range: precision alone must show
    total = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float16)
    for step in range(k):
        total += (a[:, step, None] * b[None, :, step] / scale).half()
    assert not case.judge(out=total.float() * scale.float()).passed


def test_matmul_without_scales_fails(suite):
    case = matmul(suite)
    a, b = case.inputs["a"].float(), case.inputs["b"].float()
    plain = a @ b.T
    fitted = plain * (case.declared["out"] * plain).sum() / plain.square().sum()
    assert not case.judge(out=fitted).passed


@pytest.mark.parametrize("dropped", ["page table", "length", "scale"])
def test_attention_that_ignores_an_operand_fails(suite, dropped):
    kwargs = {"num_query_heads": 8, "num_kv_heads": 2, "head_size": 128, "block_size": 16, "dtype": "bf16"}
    case = drawn(suite, "paged_attention_decode", {}, num_seqs=6, ctx_len=64, **kwargs)
    changed = dict(case.inputs)
    if dropped == "page table":
        width = changed["block_tables"].shape[1]
        changed["block_tables"] = torch.arange(6 * width, dtype=torch.int32).view(6, width) % len(changed["k_cache"])
    elif dropped == "length":
        changed["seq_lens"] = torch.full_like(changed["seq_lens"], 64)
    else:
        changed["query"] = changed["query"] * 128**0.5
    assert not case.judge(**declared(case.problem, case.shape, changed)).passed


def test_attention_that_reads_one_token_too_many_fails(suite):
    kwargs = {"num_query_heads": 8, "num_kv_heads": 2, "head_size": 128, "block_size": 16, "dtype": "bf16"}
    case = drawn(suite, "paged_attention_decode", {}, num_seqs=6, ctx_len=100, **kwargs)
    changed = {**case.inputs, "seq_lens": case.inputs["seq_lens"] + 1}
    assert not case.judge(**declared(case.problem, case.shape, changed)).passed


# ---- shape, dtype, names, values that are not finite


def test_other_names_shape_or_dtype_fail(norm):
    out = norm.declared["out"]
    assert "expected ['out']" in compare(*_args(norm), {"y": out}).detail
    assert "expected bfloat16[40, 5120]" in norm.judge(out=out[:39]).detail
    assert not norm.judge(out=out.float()).passed
    assert not norm.judge(out=out[0]).passed


def _args(case):
    return case.problem, case.shape, case.inputs, case.oracle, case.declared


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_value_that_is_not_finite_fails(norm, value):
    out = norm.declared["out"].clone()
    out[39, 5119] = value
    result = norm.judge(out=out)
    assert not result.passed and result.index == [39, 5119]


def test_not_finite_values_must_be_the_same():
    want = torch.tensor([[1.0, float("inf"), -float("inf"), float("nan")]], dtype=torch.float64)
    declared = want.bfloat16()
    assert float_ratio(want, declared, declared, FLOAT).read()[0] <= 1
    for position, value in ((1, 3e38), (1, -float("inf")), (2, float("nan")), (3, 0.0), (0, float("nan"))):
        got = declared.clone()
        got[0, position] = value
        assert float_ratio(want, declared, got, FLOAT).read()[0] == float("inf")


def test_reference_that_overflows_where_the_oracle_does_not_is_the_folders_fault():
    want = torch.ones(2, 4, dtype=torch.float64)
    declared = torch.full((2, 4), float("inf"), dtype=torch.bfloat16)
    with pytest.raises(UserError, match="not finite at declared precision"):
        float_ratio(want, declared, declared, FLOAT)


def test_row_of_zeros_takes_zeros_only():
    want = torch.ones(2, 64, dtype=torch.float64)
    want[1] = 0
    base = want.bfloat16()
    assert float_ratio(want, base, base, FLOAT).read()[0] == 0
    got = base.clone()
    got[1, 5] = 1e-3
    assert float_ratio(want, base, got, FLOAT).read()[0] > 1


def test_nothing_compared_is_an_error(norm):
    empty = {"out": torch.empty(0, 5120, dtype=torch.bfloat16)}
    with pytest.raises(UserError, match="nothing compared"):
        compare(norm.problem, norm.shape, norm.inputs, empty, empty, empty)


def test_chunks_do_not_change_the_verdict(norm, monkeypatch):
    out = norm.declared["out"].clone()
    out[31, 7] += 3
    whole = norm.judge(out=out)
    monkeypatch.setattr("atrex.problems.worst._CHUNK", {"cpu": 5120})
    parts = norm.judge(out=out)
    assert parts.index == whole.index == [31, 7] and parts.worst == pytest.approx(whole.worst)


# ---- top-k


@pytest.mark.parametrize(
    ("detail", "change"),
    [
        ("repeated", lambda o: o["topk_ids"][4].__setitem__(1, int(o["topk_ids"][4, 0]))),
        ("out of range", lambda o: o["topk_ids"][4].__setitem__(7, 128)),
        ("out of range", lambda o: o["topk_ids"][4].__setitem__(7, -1)),
        ("order", lambda o: [o[name][4].copy_(o[name][4].flip(0)) for name in o]),
        ("weight", lambda o: o["topk_weights"][4].mul_(1.01)),
        ("weight", lambda o: o["topk_weights"].div_(o["topk_weights"].sum(-1, keepdim=True))),
    ],
)
def test_wrong_topk_fails(topk, detail, change):
    outputs = {name: t.clone() for name, t in topk.declared.items()}
    change(outputs)
    result = topk.judge(**outputs)
    assert not result.passed and detail in result.detail


def test_topk_that_misses_the_largest_fails(topk):
    weights, ids = torch.softmax(topk.inputs["gating_output"], -1).topk(9, dim=-1)
    result = topk.judge(topk_weights=weights[:, 1:].contiguous(), topk_ids=ids[:, 1:].int().contiguous())
    assert not result.passed


def test_topk_among_equal_scores_takes_any_but_no_repetition(suite):
    case = drawn(suite, "moe_topk_gating_softmax", {"top_k": 8}, "ties", token_count=1, num_experts=128)
    ids = case.declared["topk_ids"].clone()
    ids[5] = torch.tensor([99, 3, 127, 0, 64, 17, 2, 51])  # row 5 is constant
    assert case.judge(topk_ids=ids).passed
    ids[5, 7] = 99
    assert not case.judge(topk_ids=ids).passed


# ---- the published rule


def test_published_check_is_elementwise_allclose(norm):
    out = norm.declared["out"]
    assert published_check(norm.declared, {"out": out})
    assert published_check(norm.declared, {"out": out + 0.005})
    assert not published_check(norm.declared, {"out": out + 0.5})
    assert not published_check(norm.declared, {"out": out.float()})
    assert not published_check(norm.declared, {"y": out})


def test_published_check_wants_equal_integers(topk):
    assert not published_check(topk.declared, {**topk.declared, "topk_ids": topk.declared["topk_ids"] + 1})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn])
@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e4])
@pytest.mark.parametrize("value", [None, 0.0, float("nan"), float("inf")])
def test_the_short_way_through_finite_references_says_what_the_long_one_says(monkeypatch, dtype, scale, value):
    draw = torch.Generator().manual_seed(5)
    want = scale * torch.randn(9, 33, generator=draw, dtype=torch.float64)
    declared = want.to(dtype)
    got = (want * (1 + 0.01 * torch.randn(9, 33, generator=draw, dtype=torch.float64))).to(dtype)
    if value is not None:
        got[4, 7] = value
    short = float_ratio(want, declared, got, FLOAT).read()
    whole = compare_float._whole
    monkeypatch.setattr(compare_float, "_whole", lambda *given: (whole(*given)[0], False))
    long = float_ratio(want, declared, got, FLOAT).read()
    assert short[:4] == pytest.approx(long[:4], rel=1e-12) and short[4] == long[4]
    rule = PublishedCompare(kind="published")
    for b, o in ((declared, got), (got, got), (declared, declared), (got, declared)):
        assert published_agrees(b, o, rule) is (published_ratio(b, o, rule).read()[0] <= 1)
