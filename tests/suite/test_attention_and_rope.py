"""Attention, cache writes and rotary embeddings: references against implementations of torch's own, wrong answers."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from atrex.problems import load_suite
from atrex.problems.compare import compare, declared, oracle, widened
from atrex.problems.lint import validate
from atrex.problems.modules import load_module
from atrex.suite.lengths import expand, ragged

SUITE = load_suite()


def shape_of(operator, init=None, /, **kwargs):
    """The first shape of an operator with other arguments."""
    first = SUITE.problem(operator).shape("0")
    return replace(
        first, init_kwargs={**first.init_kwargs, **(init or {})}, input_kwargs={**first.input_kwargs, **kwargs}
    )


def drawn(operator, shape, seed=1):
    return SUITE.problem(operator).make_inputs(shape, seed, "cpu")


def passes(operator, shape, inputs, outputs):
    problem = SUITE.problem(operator)
    case = oracle(problem, shape, inputs), declared(problem, shape, inputs)
    return compare(problem, shape, inputs, *case, outputs).passed


def forward(operator, shape, inputs):
    return declared(SUITE.problem(operator), shape, inputs)


def cut(operator, sid):
    """A published shape with its batch or sequence cut down to what two cores do in a moment; the rest as published."""
    shape = SUITE.problem(operator).shape(sid)
    kwargs = dict(shape.input_kwargs)
    lengths = [min(n, 257) for n in expand(kwargs["seq_lens"])[:2]]
    kwargs["seq_lens"] = lengths
    if "num_seqs" in kwargs:
        kwargs["num_seqs"] = len(lengths)
    return replace(shape, input_kwargs=kwargs)


UNIFIED = {"num_query_heads": 6, "num_kv_heads": 2, "head_size": 24, "block_size": 8}
MIXED = shape_of("unified_attention", num_seqs=5, seq_lens=[1, 13, 9, 1, 30], context_lens=[40, 0, 16, 0, 7], **UNIFIED)


def by_torch(inputs, page):
    """unified_attention by SDPA, a sequence at a time, with a mask from the positions."""
    q, table = inputs["q"], inputs["block_table"].long()
    bounds, out = inputs["cu_seqlens_q"].tolist(), torch.empty_like(inputs["q"])
    for s, used in enumerate(inputs["seqused_k"].tolist()):
        rows = slice(bounds[s], bounds[s + 1])
        slots = [(int(table[s, t // page]), t % page) for t in range(used)]
        keys, values = (torch.stack([inputs[n][slot] for slot in slots], 1) for n in ("k_cache", "v_cache"))
        new = rows.stop - rows.start
        seen = torch.ones(new, used, dtype=torch.bool).tril(used - new)
        out[rows] = sdpa(q[rows].transpose(0, 1), keys, values, attn_mask=seen, enable_gqa=True).transpose(0, 1)
    return out


def test_unified_attention_is_torchs():
    inputs = widened(drawn("unified_attention", MIXED))
    torch.testing.assert_close(forward("unified_attention", MIXED, inputs)["out"], by_torch(inputs, 8))


def test_first_prompts_are_torchs_causal_attention():
    shape = shape_of("unified_attention", num_seqs=1, seq_lens=[45], **UNIFIED)
    inputs = widened(drawn("unified_attention", shape))
    pages = inputs["block_table"][0].long()
    q, k, v = (
        x.transpose(0, 1) for x in (inputs["q"], *(inputs[n][pages].flatten(0, 1)[:45] for n in ("k_cache", "v_cache")))
    )
    want = sdpa(q, k, v, is_causal=True, enable_gqa=True).transpose(0, 1)
    torch.testing.assert_close(forward("unified_attention", shape, inputs)["out"], want)


@pytest.mark.parametrize("operator", ["attention_forward", "unified_attention"])
def test_chunks_do_not_change_attention(operator, monkeypatch):
    shape = MIXED if operator == "unified_attention" else shape_of(operator, seq_lens=[19, 1, 33], num_heads=2)
    inputs = widened(drawn(operator, shape))
    whole = forward(operator, shape, inputs)["out"]
    monkeypatch.setattr(load_module(SUITE.problem(operator).folder / "reference.py"), "SCORES_AT_ONCE", 300)
    torch.testing.assert_close(forward(operator, shape, inputs)["out"], whole)


def test_attention_forward_is_torchs():
    shape = shape_of("attention_forward", seq_lens=[19, 1, 40, 33], num_heads=3, head_dim=72)
    inputs = widened(drawn("attention_forward", shape))
    bounds = inputs["cu_seqlens_q"].tolist()
    want = [
        sdpa(*(inputs[n][a:b].transpose(0, 1) for n in "qkv")).transpose(0, 1)
        for a, b in zip(bounds, bounds[1:], strict=False)
    ]
    torch.testing.assert_close(forward("attention_forward", shape, inputs)["out"], torch.cat(want))


def test_mla_decode_is_torchs_with_the_cache_as_keys_and_values():
    kwargs = {"nhead": 4, "kv_lora_rank": 24, "qk_rope_head_dim": 8}
    shape = shape_of("mla_decode_attention", kwargs, batch_size=5, ctx_len=9, **kwargs)
    inputs = widened(drawn("mla_decode_attention", shape))
    assert len(set(inputs["seq_lens"].tolist())) > 2
    end, want = 0, []
    for q, length in zip(inputs["q"], inputs["seq_lens"].tolist(), strict=True):
        start, end = end, end + length
        tokens = inputs["kv_cache"][start:end, 0]
        want.append(sdpa(q[None], tokens[None], tokens[None, :, :24])[0])
    torch.testing.assert_close(forward("mla_decode_attention", shape, inputs)["out"], torch.stack(want))


@pytest.mark.parametrize("sid", [*list(SUITE.problem("unified_attention").shapes)[:25], None])
def test_ignored_block_table_fails(sid):
    shape = cut("unified_attention", sid) if sid else MIXED
    inputs = drawn("unified_attention", shape)
    table = inputs["block_table"]
    pages = torch.arange(table.numel(), dtype=torch.int32).view(table.shape)
    assert not passes(
        "unified_attention", shape, inputs, forward("unified_attention", shape, inputs | {"block_table": pages})
    )


def unified_mistakes(inputs):
    top_left = inputs | {"seqused_k": inputs["cu_seqlens_q"].diff()}
    yield "mask from the top left", top_left
    yield "one token short", inputs | {"seqused_k": (inputs["seqused_k"] - 1).clamp(min=1)}
    yield "one token more", inputs | {"seqused_k": inputs["seqused_k"] + 1}
    yield "scale off by a tenth", inputs | {"q": inputs["q"] * 1.1}
    yield "tokens of another kv head", inputs | {"k_cache": inputs["k_cache"].flip(2)}


@pytest.mark.parametrize("which", range(5))
def test_wrong_unified_attention_fails(which):
    inputs = drawn("unified_attention", MIXED)
    name, changed = list(unified_mistakes(inputs))[which]
    assert not passes("unified_attention", MIXED, inputs, forward("unified_attention", MIXED, changed)), name


def test_masked_attention_forward_fails():
    shape = shape_of("attention_forward", seq_lens=[40, 70], num_heads=4, head_dim=72)
    inputs = drawn("attention_forward", shape)
    bounds = inputs["cu_seqlens_q"].tolist()
    causal = [
        sdpa(*(inputs[n][a:b].transpose(0, 1) for n in "qkv"), is_causal=True).transpose(0, 1)
        for a, b in zip(bounds, bounds[1:], strict=False)
    ]
    assert not passes("attention_forward", shape, inputs, {"out": torch.cat(causal)})
    together = sdpa(*(inputs[n].transpose(0, 1) for n in "qkv")).transpose(0, 1).contiguous()
    assert not passes("attention_forward", shape, inputs, {"out": together})


def test_bf16_probabilities_pass():
    """What a flash kernel does: the second product takes probabilities rounded to the inputs' dtype."""
    shape = shape_of("attention_forward", seq_lens=[300], num_heads=4, head_dim=72)
    inputs = drawn("attention_forward", shape)
    q, k, v = (inputs[n].float().transpose(0, 1) for n in "qkv")
    logits = q @ k.transpose(1, 2) * 72**-0.5
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    out = (weights.bfloat16().float() @ v / weights.sum(-1, keepdim=True)).transpose(0, 1).bfloat16().contiguous()
    assert passes("attention_forward", shape, inputs, {"out": out})


def test_wrong_mla_decode_fails():
    problem = SUITE.problem("mla_decode_attention")
    shape = problem.shape("2")
    inputs = drawn("mla_decode_attention", shape)
    heads_scale = math.sqrt(576 / 192)  # DeepSeek's own scale, over keys as they are before absorption
    for changed in (
        {"q": inputs["q"] * heads_scale},
        {"q": torch.cat([inputs["q"][..., :512], 0 * inputs["q"][..., 512:]], -1)},
        {"seq_lens": torch.full_like(inputs["seq_lens"], 256)},
    ):
        assert not passes(
            "mla_decode_attention", shape, inputs, forward("mla_decode_attention", shape, inputs | changed)
        )


def by_loop(inputs):
    caches = {name: inputs[name].clone() for name in ("key_cache", "value_cache")}
    page = inputs["key_cache"].shape[1]
    for token, slot in enumerate(inputs["slot_mapping"].tolist()):
        if slot >= 0:
            caches["key_cache"][slot // page, slot % page] = inputs["key"][token]
            caches["value_cache"][slot // page, slot % page] = inputs["value"][token]
    return caches


def test_reshape_and_cache_is_a_loop_over_tokens():
    shape = shape_of("reshape_and_cache", shape=[133, 2, 8])
    inputs = drawn("reshape_and_cache", shape)
    before = {name: t.clone() for name, t in inputs.items()}
    found = forward("reshape_and_cache", shape, inputs)
    assert all(torch.equal(found[name], want) for name, want in by_loop(inputs).items())
    assert all(torch.equal(before[name], t) for name, t in inputs.items())


@pytest.mark.parametrize("sid", SUITE.problem("reshape_and_cache").shapes)
def test_cache_filled_in_order_fails(sid):
    shape = SUITE.problem("reshape_and_cache").shape(sid)
    inputs = drawn("reshape_and_cache", shape)
    in_order = torch.arange(len(inputs["key"]))
    wrong = forward("reshape_and_cache", shape, inputs | {"slot_mapping": in_order})
    right = forward("reshape_and_cache", shape, inputs)
    problem = SUITE.problem("reshape_and_cache")
    assert not compare(problem, shape, inputs, right, right, wrong).passed
    assert compare(problem, shape, inputs, right, right, right).passed


def test_cache_slots_are_scattered_and_some_are_padding():
    shape = SUITE.problem("reshape_and_cache").shape("6")
    inputs = drawn("reshape_and_cache", shape)
    slots = inputs["slot_mapping"]
    written = slots[slots >= 0]
    assert len(written.unique()) == len(written) == 4108 - 4108 // 16
    assert written.max() < inputs["key_cache"].shape[0] * 16 - 16
    assert (slots.diff() != 1).float().mean() > 0.9


def test_padding_written_to_the_last_slot_fails():
    shape = shape_of("reshape_and_cache", shape=[40, 2, 8])
    inputs = drawn("reshape_and_cache", shape)
    last = inputs["key_cache"].shape[0] * 16 - 1
    wrong = inputs | {"slot_mapping": torch.where(inputs["slot_mapping"] < 0, last, inputs["slot_mapping"])}
    assert not passes("reshape_and_cache", shape, inputs, forward("reshape_and_cache", shape, wrong))


def turned(x, angle, neox):
    """Rotation by complex multiplication; x [tokens, heads, d], angle [tokens, d / 2]."""
    pairs = torch.stack(x.chunk(2, -1), -1) if neox else x.unflatten(-1, (-1, 2))
    product = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angle), angle)[:, None]
    )
    return torch.cat(product.unbind(-1), -1) if neox else product.flatten(-2)


@pytest.mark.parametrize("rotary", [32, 12])
@pytest.mark.parametrize("bias", [False, True])
def test_fused_qkv_rope_is_a_complex_rotation(rotary, bias):
    kwargs = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 32}
    shape = shape_of("fused_qkv_rope", {**kwargs, "rope_dim": rotary}, total_tokens=9, bias=bias, **kwargs)
    inputs = widened(drawn("fused_qkv_rope", shape))
    packed = inputs["qkv"] + (inputs["qkv_bias"] if bias else 0)
    heads = packed.view(9, 10, 32)
    frequency = torch.tensor([1 / 10000 ** (2 * i / rotary) for i in range(rotary // 2)], dtype=torch.float64)
    angle = inputs["positions"].double()[:, None] * frequency
    want = torch.cat([turned(heads[..., :rotary], angle, True), heads[..., rotary:]], -1)
    found = forward("fused_qkv_rope", shape, inputs)
    for name, part in (("q", want[:, :6]), ("k", want[:, 6:8]), ("v", heads[:, 8:])):
        torch.testing.assert_close(found[name], part, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sid", list(SUITE.problem("fused_qkv_rope").shapes)[:6])
def test_views_of_qkv_fail(sid):
    problem = SUITE.problem("fused_qkv_rope")
    shape = problem.shape(sid)
    inputs = drawn("fused_qkv_rope", shape)
    assert (inputs["positions"] > 0).all()
    model = problem.reference(shape)
    q, k, v = inputs["qkv"].view(1, -1, model.head_dim).split(model.heads, 1)
    right = forward("fused_qkv_rope", shape, inputs)
    assert passes("fused_qkv_rope", shape, inputs, right)
    assert not passes("fused_qkv_rope", shape, inputs, {"q": q, "k": right["k"], "v": right["v"]})
    assert not passes("fused_qkv_rope", shape, inputs, {"q": right["q"], "k": k, "v": right["v"]})
    assert passes("fused_qkv_rope", shape, inputs, {"q": right["q"], "k": right["k"], "v": v})


@pytest.mark.parametrize("sid", ["0", "1", "6"])
def test_frequencies_by_another_route_pass(sid):
    """Frequencies as 2**(-2i/d log2 base) in float32: angles up to 32k differ in the last places, which is honest."""
    problem = SUITE.problem("fused_qkv_rope")
    shape = problem.shape(sid)
    for draw in problem.corner_cases(shape, 3, "cpu").values():
        inputs = draw()
        base = torch.exp2(torch.arange(64) * (-2 / 128) * math.log2(10000))
        angle = inputs["positions"].float()[:, None] * base
        packed = inputs["qkv"].float() + inputs.get("qkv_bias", torch.zeros(1)).float()
        heads = problem.reference(shape).heads
        q, k, v = packed.view(len(packed), -1, 128).split(heads, 1)
        made = {"q": turned(q, angle, True), "k": turned(k, angle, True), "v": v}
        assert passes("fused_qkv_rope", shape, inputs, {n: t.to(inputs["qkv"].dtype) for n, t in made.items()})


MROPE = [
    ([3, 2, 3], False, True, 16),
    ([3, 2, 3], False, False, 16),
    ([3, 3, 2], True, True, 16),
    ([4, 2, 2], True, False, 24),
]


@pytest.mark.parametrize(("section", "interleaved", "neox", "size"), MROPE)
def test_mrope_is_a_complex_rotation_by_the_axis_of_each_frequency(section, interleaved, neox, size):
    kwargs = {"head_size": size, "rotary_dim": 16}
    init = {**kwargs, "mrope_section": section, "mrope_interleaved": interleaved, "is_neox_style": neox}
    shape = shape_of("mrope", init, token_count=7, num_query_heads=3, num_kv_heads=1, **kwargs)
    inputs = widened(drawn("mrope", shape))
    axes = [0] * section[0] + [1] * section[1] + [2] * section[2]
    if interleaved:
        axes = [0] * 8
        for axis in (1, 2):
            for j in range(axis, 3 * section[axis], 3):
                axes[j] = axis
    # In float64, not what float32 cosines and sines say: their angle is only good to 1e-7.
    angle = torch.stack([torch.atan2(inputs["sin"][a, :, j], inputs["cos"][a, :, j]) for j, a in enumerate(axes)], -1)
    found = forward("mrope", shape, inputs)
    for name, heads in (("q", 3), ("k", 1)):
        x = inputs[name].view(7, heads, size)
        want = torch.cat([turned(x[..., :16], angle, neox), x[..., 16:]], -1).view(7, -1)
        torch.testing.assert_close(found[name], want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sid", list(SUITE.problem("mrope").shapes))
def test_wrong_mrope_fails(sid):
    problem = SUITE.problem("mrope")
    shape = problem.shape(sid)
    shape = replace(shape, input_kwargs={**shape.input_kwargs, "token_count": 16})
    inputs = drawn("mrope", shape)
    init = dict(shape.init_kwargs)
    assert not passes("mrope", shape, inputs, {"q": inputs["q"], "k": inputs["k"]})
    half = init["rotary_dim"] // 2
    for changed in (
        {"mrope_section": [half, 0, 0]},
        {"mrope_interleaved": not init["mrope_interleaved"]},
        {"is_neox_style": not init["is_neox_style"]},
    ):
        other = replace(shape, init_kwargs=init | changed)
        assert not passes("mrope", shape, inputs, forward("mrope", other, inputs)), changed


@pytest.mark.parametrize("sid", list(SUITE.problem("unified_attention").shapes)[25:])
def test_added_shapes_decode_and_their_work_is_what_is_seen(sid):
    problem = SUITE.problem("unified_attention")
    kwargs = problem.shape(sid).input_kwargs
    new, old = expand(kwargs["seq_lens"]), expand(kwargs["context_lens"])
    assert len(new) == len(old) == kwargs["num_seqs"] and max(old) >= 1000
    seen = sum(sum(range(c + 1, c + n + 1)) for n, c in zip(new, old, strict=True))
    assert problem.work(problem.shape(sid)).total_flops == 4 * kwargs["num_query_heads"] * kwargs["head_size"] * seen


def test_inferred_vision_calls_keep_their_tokens():
    shapes = SUITE.problem("attention_forward").shapes
    for inferred, published in (("21", "8"), ("22", "19")):
        lengths, whole = (expand(shapes[s].input_kwargs["seq_lens"]) for s in (inferred, published))
        assert sum(lengths) == sum(whole) and len(lengths) >= 16 and all(n % 4 == 0 for n in lengths)


def test_lengths_in_compact_form():
    assert expand({"count": 2, "length": 256}) == [256, 256]
    assert expand([3, {"count": 2, "length": 5}, 1]) == [3, 5, 5, 1]
    assert ragged(1, 77) == [77] and sum(ragged(7, 77)) == 7 * 77


def one_token(trivial, **rule):
    """attention_forward with the metadata of its one-token shape and its comparison changed."""
    problem = SUITE.problem("attention_forward")
    meta = problem.metadata
    noted = meta.shapes["20"].model_copy(update={"trivial": trivial})
    changed = {"out": meta.compare["out"].model_copy(update=rule)}
    return replace(
        problem, metadata=meta.model_copy(update={"shapes": {**meta.shapes, "20": noted}, "compare": changed})
    )


def failures(problem, sid):
    return {finding.check for finding in validate(problem, [problem.shape(sid)]).failures}


def test_what_one_token_cannot_tell_must_fail_in_a_corner_case():
    assert failures(one_token("out is v"), "20") == set()
    assert {"out: copy of input v fails", "reacts to q", "reacts to k"} <= failures(one_token(None), "20")


def test_a_note_does_not_excuse_a_comparison_that_takes_anything():
    assert "out: copy of input v fails" in failures(one_token("out is v", element_rms=999, rms_floor=999), "20")
