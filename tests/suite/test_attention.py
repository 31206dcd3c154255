"""Attention: references against torch's own, kernels that round once, wrong answers, the work of added shapes."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from atrex.problems.compare import widened
from atrex.problems.lint import validate
from atrex.problems.modules import load_module
from atrex.suite.lengths import expand, ragged
from tests.suite.cases import SUITE, drawn, forward, passes, shape_of


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


def test_attention_forward_takes_keys_of_another_length():
    kwargs = {"seq_lens": [19, 1, 40], "key_lens": [33, 64, 7], "num_heads": 3, "head_dim": 72}
    shape = shape_of("attention_forward", **kwargs)
    inputs = widened(drawn("attention_forward", shape))
    bounds = [inputs[n].tolist() for n in ("cu_seqlens_q", "cu_seqlens_k")]
    assert {(b - a, d - c) for (a, b), (c, d) in zip(*(zip(x, x[1:], strict=False) for x in bounds), strict=True)} == {
        (19, 33), (1, 64), (40, 7)
    }  # fmt: skip
    q, k, v = (
        [x.transpose(0, 1) for x in inputs[n].split(torch.tensor(b).diff().tolist())]
        for n, b in zip("qkv", (bounds[0], bounds[1], bounds[1]), strict=True)
    )
    want = [sdpa(*operands).transpose(0, 1) for operands in zip(q, k, v, strict=True)]
    torch.testing.assert_close(forward("attention_forward", shape, inputs)["out"], torch.cat(want))
    work = SUITE.problem("attention_forward").work(shape)
    assert work.total_flops == 4 * 3 * 72 * (19 * 33 + 64 + 40 * 7)
    assert (work.bytes_read, work.bytes_written) == (2 * 3 * 72 * (60 + 2 * 104) + 2 * 4 * 4, 2 * 3 * 72 * 60)


def corner(operator, sid, name):
    """(shape, inputs) of one corner case."""
    problem = SUITE.problem(operator)
    return problem.shape(sid), problem.corner_cases(problem.shape(sid), 1, "cpu")[name]()


def wrong_kernel(operator, name):
    """The wrong kernel `name` of an operator's mutants, as a function of shape and inputs."""
    folder = SUITE.problem(operator).folder
    old, new = load_module(folder / "mutants.py").WRONG[name]
    source = {}
    exec((folder / "reference.py").read_text().replace(old, new), source)  # noqa: S102 - our own text
    return lambda shape, inputs: {"out": source["Model"](**shape.init_kwargs)(**inputs)}


@pytest.mark.parametrize("case", ["more_keys", "fewer_keys"])
def test_keys_within_the_queries_bounds_fail(case):
    shape, inputs = corner("attention_forward", "11", case)
    out = wrong_kernel("attention_forward", "keys within the queries' bounds")(shape, inputs)
    assert passes("attention_forward", shape, inputs, forward("attention_forward", shape, inputs))
    assert not passes("attention_forward", shape, inputs, out)


NAN_OUTSIDE = [
    ("unified_attention", "15", "nan_outside", "slots past the context times zero"),
    ("paged_attention_decode", "3", "nan_outside", "slots past the context times zero"),
    ("mla_decode_attention", "1", "nan_after", "rows past the context times zero"),
]


@pytest.mark.parametrize("operator, sid, case, mutant", NAN_OUTSIDE)
def test_nan_in_slots_of_no_token_is_not_read(operator, sid, case, mutant):
    shape, inputs = corner(operator, sid, case)
    assert any(t.isnan().any() for t in inputs.values())
    out = forward(operator, shape, inputs)
    assert out["out"].isfinite().all() and passes(operator, shape, inputs, out)
    assert not passes(operator, shape, inputs, wrong_kernel(operator, mutant)(shape, inputs))


def test_queries_of_no_sequence_get_zero():
    shape, inputs = corner("unified_attention", "15", "queries_of_no_sequence")
    end = int(inputs["cu_seqlens_q"][-1])
    out = forward("unified_attention", shape, inputs)["out"]
    assert end < len(out) and (out[end:] == 0).all() and (out[:end] != 0).any(-1).all()
    left = wrong_kernel("unified_attention", "queries of no sequence left as they are")(shape, inputs)
    assert not passes("unified_attention", shape, inputs, left)


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


@pytest.mark.parametrize("lost", [1, 64])
def test_tokens_lost_from_a_long_context_show(lost):
    heads = {"num_query_heads": 8, "num_kv_heads": 2, "head_size": 64}
    shape = shape_of("unified_attention", num_seqs=2, seq_lens=[1, 1], context_lens=[16383, 8191], **heads)
    inputs = drawn("unified_attention", shape)
    short = forward("unified_attention", shape, inputs | {"seqused_k": inputs["seqused_k"] - lost})
    assert not passes("unified_attention", shape, inputs, short)


def by_kernel(inputs, how):
    """attention_forward as kernels do it, in float32 with one intermediate rounded to bf16."""
    out = torch.zeros_like(inputs["q"])
    places, there = (inputs[n].tolist() for n in ("cu_seqlens_q", "cu_seqlens_k"))
    scale = inputs["q"].shape[2] ** -0.5 / math.log(2)
    for a, b, c, d in zip(places, places[1:], there, there[1:], strict=False):
        if a == b:
            continue
        q, k, v = (x.float().transpose(0, 1) for x in (inputs["q"][a:b], inputs["k"][c:d], inputs["v"][c:d]))
        if how == "scaled queries":
            logits = (q * scale).bfloat16().float() @ k.transpose(1, 2)
        else:
            logits = q @ k.transpose(1, 2)
            logits = (logits.bfloat16().float() if how == "logits" else logits) * scale
        weights = (logits if how == "no maximum" else logits - logits.amax(-1, keepdim=True)).exp2()
        product = (weights.bfloat16().float() if how == "probabilities" else weights) @ v
        out[a:b] = (product / weights.sum(-1, keepdim=True)).transpose(0, 1).bfloat16()
    return {"out": out}


@pytest.mark.parametrize("sid", ["11", "h1"])
@pytest.mark.parametrize("how", ["probabilities", "scaled queries"])
def test_kernels_with_one_bf16_intermediate_pass(sid, how):
    problem = SUITE.problem("attention_forward")
    shape = problem.shape(sid)
    cases = problem.corner_cases(shape, 2, "cpu") | {"seed": lambda: drawn("attention_forward", shape)}
    for name, draw in cases.items():
        inputs = draw()
        assert passes("attention_forward", shape, inputs, by_kernel(inputs, how)), name


@pytest.mark.parametrize("how", ["logits", "no maximum"])
def test_large_logits_need_float32_and_their_maximum(how):
    problem = SUITE.problem("attention_forward")
    shape = problem.shape("11")
    inputs = problem.corner_cases(shape, 2, "cpu")["large_logits"]()
    assert not passes("attention_forward", shape, inputs, by_kernel(inputs, how))


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
