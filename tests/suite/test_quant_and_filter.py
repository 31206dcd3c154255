"""The quantizing operators, fused_qk_rmsnorm and topk_filter against other implementations and wrong answers."""

import pytest
import torch
from torch.nn import functional

from atrex.problems import load_problem
from atrex.problems.compare import compare, declared, oracle, published_check, widened
from atrex.problems.load import SHIPPED
from atrex.problems.model import Shape

CPU_BYTES = 4e5  # published shapes are cut to as many rows as that, which holds one row of any


class Case:
    def __init__(self, operator, shape, corner=None, seed=3, fp8="e4m3fn"):
        self.problem, self.shape = load_problem(SHIPPED / operator), shape
        if corner:
            self.inputs = self.problem.corner_cases(shape, seed, "cpu")[corner]()
        else:
            self.inputs = self.problem.make_inputs(shape, seed, "cpu")
        self.oracle = oracle(self.problem, shape, self.inputs, fp8)
        self.declared = declared(self.problem, shape, self.inputs, fp8)

    def judge(self, **outputs):
        return compare(self.problem, self.shape, self.inputs, self.oracle, self.declared, {**self.declared, **outputs})


def cut(operator):
    """Every published shape of an operator, large ones cut to their first rows; duplicates left out."""
    problem = load_problem(SHIPPED / operator)
    tokens = next(key for key in ("token_count", "num_tokens", "seq_len") if key in problem.shapes["0"].input_kwargs)
    seen = {}
    for sid, shape in problem.shapes.items():
        if problem.metadata.shapes[sid].origin != "published":
            continue
        rows = shape.input_kwargs[tokens]
        fit = max(1, int(rows * min(1, CPU_BYTES / problem.work(shape).total_bytes)))
        kwargs = {**shape.input_kwargs, tokens: fit}
        seen.setdefault(str(kwargs), Shape(sid, shape.init_kwargs, kwargs))
    return list(seen.values())


def on_shapes(*operators):
    pairs = [(operator, shape) for operator in operators for shape in cut(operator)]
    return pytest.mark.parametrize(("operator", "shape"), pairs, ids=[f"{o}-{s.id}" for o, s in pairs])


QUANTIZERS = ("fp8_dynamic_per_token_quant", "per_token_group_quant_fp8")
NAMES = {"fp8_dynamic_per_token_quant": ("q", "scale"), "per_token_group_quant_fp8": ("quantized", "scales")}
NAMES["fused_rmsnorm_quant"] = ("quantized", "scale")


def table(dtype):
    """Every finite value of an fp8 encoding, ascending, with the parity of its mantissa."""
    raw = torch.arange(256, dtype=torch.uint8)
    values = raw.view(dtype).to(torch.float64)
    keep = values.isfinite() & ~((values == 0) & (raw > 0x7F))
    values, odd = values[keep], (raw & 1)[keep].bool()
    order = values.argsort()
    return values[order], odd[order]


def nearest(values, dtype):
    """Round by looking for the closest value in the table, ties to the even mantissa: no conversion of torch's."""
    known, odd = table(dtype)
    distance = (values.to(torch.float64).reshape(-1, 1) - known).abs() + odd * 1e-12
    return known[distance.argmin(-1)].reshape(values.shape)


# ---- another implementation says the same


@pytest.mark.parametrize("fp8", ["e4m3fn", "e4m3fnuz"])
@pytest.mark.parametrize("corner", [None, "tiny", "large", "spike"])
def test_per_token_quant_is_the_closest_code_of_each_value(fp8, corner):
    shape = Shape("t", {}, {"token_count": 5, "hidden_size": 256})
    case = Case("fp8_dynamic_per_token_quant", shape, corner, fp8=fp8)
    largest = {"e4m3fn": 448.0, "e4m3fnuz": 240.0}[fp8]
    for row, codes, scale in zip(case.inputs["x"], case.declared["q"], case.declared["scale"], strict=True):
        peak = max(max(abs(v) for v in row.tolist()), 1e-12)
        assert scale.item() == pytest.approx(peak / largest, rel=1e-6)
        want = nearest((row.float() / scale).clamp(-largest, largest), codes.dtype)
        assert torch.equal(codes.to(torch.float64), want)


@pytest.mark.parametrize("corner", [None, "tiny", "large", "spike"])
def test_group_quant_is_per_token_quant_of_each_group(corner):
    shape = Shape("t", {"group_size": 128}, {"token_count": 6, "hidden_size": 512})
    case = Case("per_token_group_quant_fp8", shape, corner)
    for group in range(4):
        part = case.inputs["x"][:, 128 * group : 128 * (group + 1)]
        peak = functional.max_pool1d(part.float().abs()[:, None], 128)[:, 0, 0].clamp(min=1e-10)
        scale = case.declared["scales"][:, group]
        torch.testing.assert_close(scale, peak / 448, rtol=1e-6, atol=0)
        codes = case.declared["quantized"][:, 128 * group : 128 * (group + 1)]
        assert torch.equal(codes.to(torch.float64), nearest(part.float() / scale[:, None], codes.dtype))


@pytest.mark.parametrize("corner", [None, "cancelling", "small_rows", "large_rows"])
def test_fused_quant_is_torchs_rms_norm_of_the_sum_quantized(corner):
    case = Case("fused_rmsnorm_quant", Shape("t", {}, {"token_count": 6, "hidden_size": 2048}), corner)
    x, residual, weight = (t.double() for t in case.inputs.values())
    normed = functional.rms_norm(x + residual, (2048,), weight, 1e-6)
    scale = normed.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    torch.testing.assert_close(case.oracle["residual_out"], x + residual)
    torch.testing.assert_close(case.oracle["scale"], scale)
    torch.testing.assert_close(case.oracle["quantized"], normed / scale)


@pytest.mark.parametrize("corner", [None, "small_heads", "large_heads"])
def test_qk_norm_is_torchs_rms_norm_of_every_head(corner):
    kwargs = {"head_num": 6, "kv_head_num": 2, "size_per_head": 64}
    case = Case("fused_qk_rmsnorm", Shape("t", kwargs, {"num_tokens": 3, **kwargs, "dtype": "fp16"}), corner)
    packed, q_weight, k_weight = (t.double() for t in case.inputs.values())
    want = packed.clone()
    for head in range(8):
        at = slice(64 * head, 64 * (head + 1))
        want[:, at] = functional.rms_norm(packed[:, at], (64,), q_weight if head < 6 else k_weight, 1e-6)
    torch.testing.assert_close(case.oracle["out"], want)


@pytest.mark.parametrize("corner", [None, "ties", "masked", "close"])
@pytest.mark.parametrize("k", [1, 20, 50])
def test_filter_keeps_what_a_sorted_list_says(corner, k):
    case = Case("topk_filter", Shape("t", {"top_k": k}, {"seq_len": 5, "hidden_size": 300}), corner)
    for row, out in zip(case.inputs["logits"].tolist(), case.declared["out"].tolist(), strict=True):
        threshold = sorted(row, reverse=True)[k - 1]
        assert out == [value if value >= threshold else -float("inf") for value in row]


def test_filter_keeps_the_default_of_fifty():
    case = Case("topk_filter", Shape("t", {}, {"seq_len": 1, "hidden_size": 300}), "close")
    assert (case.declared["out"].isfinite().sum(-1) == 50).all()


@pytest.mark.parametrize("operator", [*NAMES, "fused_qk_rmsnorm", "topk_filter"])
def test_float64_operands_stay_in_float64(operator):
    shape = cut(operator)[0]
    case = Case(operator, shape)
    wide = declared(case.problem, shape, widened(case.inputs))
    assert {t.dtype for t in wide.values()} == {torch.float64}


@pytest.mark.parametrize("operator", QUANTIZERS)
def test_reference_in_chunks_is_the_reference(operator):
    case = Case(operator, cut(operator)[1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(type(case.problem.reference(case.shape)).forward.__globals__, "ROWS_AT_ONCE", 7)
        parts = declared(case.problem, case.shape, case.inputs)
    for name, tensor in case.declared.items():
        assert torch.equal(parts[name].view(torch.uint8), tensor.view(torch.uint8))


# ---- honest kernels pass


def quantized(values, group, inverse=False):
    parts = values.view(values.shape[0], -1, group)
    scale = parts.abs().amax(-1).clamp(min=1e-10) * (1 / 448 if inverse else 1)
    scale = scale if inverse else scale / 448
    scaled = parts * (1 / scale[..., None]) if inverse else parts / scale[..., None]
    return scaled.clamp(-448, 448).view_as(values).to(torch.float8_e4m3fn), scale


@on_shapes(*QUANTIZERS)
def test_quantizing_by_the_reciprocal_passes(operator, shape):
    case = Case(operator, shape)
    group = 128 if operator == "per_token_group_quant_fp8" else shape.input_kwargs["hidden_size"]
    codes, scale = quantized(case.inputs["x"].float(), group, inverse=True)
    named = dict(zip(NAMES[operator], (codes, scale.reshape(case.declared[NAMES[operator][1]].shape)), strict=True))
    result = case.judge(**named)
    assert result.passed and result.worst < 0.5


@on_shapes("fused_rmsnorm_quant")
@pytest.mark.parametrize("rounded", [False, True], ids=["fp32", "bf16"])
def test_fused_quant_with_other_roundings_passes(operator, shape, rounded):
    case = Case(operator, shape)
    x, residual, weight = (t.float() for t in case.inputs.values())
    total = x + residual
    normed = functional.rms_norm(total, total.shape[-1:], None, 1e-6)
    normed = normed.bfloat16().float() * weight if rounded else normed * weight
    codes, scale = quantized(normed, total.shape[1])
    result = case.judge(quantized=codes, scale=scale, residual_out=total.bfloat16())
    assert result.passed


# ---- wrong ones fail


@on_shapes("per_token_group_quant_fp8")
def test_scales_that_are_all_zero_fail(operator, shape):
    case = Case(operator, shape)
    assert not case.judge(scales=torch.zeros_like(case.declared["scales"])).passed


def test_scales_that_are_all_zero_passed_on_published_inputs():
    """A standard normal's largest of 128 is under 4.48, so that its scale is under the published atol of 1e-2."""
    case = Case("per_token_group_quant_fp8", cut("per_token_group_quant_fp8")[0])
    x = torch.randn(case.inputs["x"].shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    scales = declared(case.problem, case.shape, {"x": x})["scales"]
    assert published_check({"scales": scales}, {"scales": torch.zeros_like(scales)})


@on_shapes(*NAMES)
@pytest.mark.parametrize("wrong", ["largest", "truncated", "scale", "one scale", "reversed", "unscaled"])
def test_wrong_quantization_fails(operator, shape, wrong):
    case = Case(operator, shape)
    codes_name, scale_name = NAMES[operator]
    codes, scale = case.declared[codes_name], case.declared[scale_name]
    wide, per_row = codes.float(), scale.reshape(len(codes), -1)
    if wrong == "largest":
        wide, scale = wide * (240 / 448), scale * (448 / 240)
    elif wrong == "truncated":  # half of the codes are one nearer to zero
        raw = codes.view(torch.uint8)
        wide = (raw - ((raw & 0x7F > 0) & (torch.rand(raw.shape) < 0.5)).to(torch.uint8)).view(codes.dtype).float()
    elif wrong == "scale":
        scale = scale * 1.1
    elif wrong == "one scale":
        scale = torch.full_like(scale, 1.02 * scale.mean().item())
    elif wrong == "reversed":
        wide = wide.flip(1)
    else:
        wide = wide * per_row.repeat_interleave(wide.shape[1] // per_row.shape[1], 1)
    assert not case.judge(**{codes_name: wide.to(codes.dtype), scale_name: scale}).passed


@on_shapes("fused_rmsnorm_quant")
@pytest.mark.parametrize("dropped", ["residual", "weight"])
def test_fused_quant_without_an_operand_fails(operator, shape, dropped):
    case = Case(operator, shape)
    changed = {**case.inputs, dropped: torch.full_like(case.inputs[dropped], 0 if dropped == "residual" else 1)}
    found = declared(case.problem, shape, changed)
    assert not case.judge(quantized=found["quantized"], scale=found["scale"]).passed


@pytest.mark.parametrize("eps", [1.1e-6, 0.9e-6, 0.0])
def test_fused_quant_with_another_eps_fails(eps):
    shape = Shape("t", {}, {"token_count": 16, "hidden_size": 2048})
    case = Case("fused_rmsnorm_quant", shape, "small_rows")
    found = declared(case.problem, Shape("t", {"eps": eps}, shape.input_kwargs), case.inputs)
    assert not case.judge(**found).passed


@on_shapes("fused_qk_rmsnorm")
@pytest.mark.parametrize("wrong", ["q_weight", "k_weight", "swapped", "one rms", "v normed", "k left", "constant"])
def test_wrong_qk_norm_fails(operator, shape, wrong):
    case = Case(operator, shape)
    heads, groups, size = (shape.init_kwargs[key] for key in ("head_num", "kv_head_num", "size_per_head"))
    inputs, packed, out = dict(case.inputs), case.inputs["hidden_states"].float(), None
    if wrong in ("q_weight", "k_weight"):
        inputs[wrong] = torch.ones_like(inputs[wrong])
    elif wrong == "swapped":
        inputs["q_weight"], inputs["k_weight"] = inputs["k_weight"], inputs["q_weight"]
    else:
        right = case.declared["out"].float()
        k, v = heads * size, (heads + groups) * size
        weights = torch.cat([inputs["q_weight"].repeat(heads), inputs["k_weight"].repeat(groups)]).float()
        out = right.clone()
        if wrong == "one rms":
            out[:, :v] = functional.rms_norm(packed[:, :v], (v,), weights, 1e-6)
        elif wrong == "v normed":
            parts = packed[:, v:].unflatten(-1, (-1, size))
            out[:, v:] = functional.rms_norm(parts, (size,), inputs["k_weight"].float(), 1e-6).flatten(1)
        elif wrong == "k left":
            out[:, k:v] = packed[:, k:v]
        else:
            out[:, :v] = packed[:, :v] * weights
    if out is None:
        out = declared(case.problem, shape, inputs)["out"]
    assert not case.judge(out=out.half()).passed


WRONG_FILTERS = ["k - 1", "k + 1", "exactly k", "zeros", "bf16", "lowest", "all", "log_softmax", "rounded"]


@on_shapes("topk_filter")
@pytest.mark.parametrize("wrong", WRONG_FILTERS)
def test_wrong_filter_fails(operator, shape, wrong):
    corner = {"exactly k": "ties", "bf16": "close", "k - 1": "close", "k + 1": "close"}.get(wrong)
    case = Case(operator, shape, corner)
    logits, out = case.inputs["logits"], case.declared["out"].clone()
    k = shape.init_kwargs.get("top_k", 50)
    if wrong in ("k - 1", "k + 1"):
        out = declared(case.problem, Shape("t", {"top_k": k + (1 if "+" in wrong else -1)}, {}), case.inputs)["out"]
    elif wrong == "exactly k":
        kept = torch.topk(logits, k).indices
        out = torch.full_like(logits, -torch.inf).scatter(1, kept, logits.gather(1, kept))
    elif wrong == "zeros":
        out[out.isinf()] = 0
    elif wrong == "bf16":
        narrow = logits.bfloat16()
        out = logits.masked_fill(narrow < torch.topk(narrow, k).values[:, -1:], -torch.inf)
    elif wrong == "lowest":
        out[out.isinf()] = torch.finfo(out.dtype).min
    elif wrong == "all":
        out = logits.clone()
    elif wrong == "log_softmax":
        out = out.log_softmax(-1)
    else:
        out = out.bfloat16().float()
    assert not case.judge(out=out).passed
