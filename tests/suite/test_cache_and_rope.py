"""Cache writes and rotary embeddings: references against loops and complex rotations, wrong answers."""

import math
from dataclasses import replace

import pytest
import torch

from atrex.problems.compare import compare, widened
from tests.suite.cases import SUITE, drawn, forward, passes, shape_of


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


@pytest.mark.parametrize(
    "sid",
    [
        pytest.param(sid, marks=pytest.mark.slow if sid in ("4", "5") else ())  # tens of seconds
        for sid in SUITE.problem("reshape_and_cache").shapes
    ],
)
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
