"""linear_sigmoid_mul and moe_sum_reduce: independent references, and wrong answers that the published suite accepts."""

from dataclasses import replace

import pytest
import torch

from atrex.problems import load_suite
from atrex.problems.compare import compare, declared, oracle

SUITE = load_suite()
GATE, SUM = SUITE.problem("linear_sigmoid_mul"), SUITE.problem("moe_sum_reduce")


def cut(shape, **limits):
    """The shape with each named size limited, so that a CPU can run it."""
    smaller = {key: min(shape.input_kwargs[key], limit) for key, limit in limits.items()}
    return replace(shape, input_kwargs={**shape.input_kwargs, **smaller})


def judged(problem, shape, wrong):
    inputs = problem.make_inputs(shape, 1, "cpu")
    base = declared(problem, shape, inputs)
    outputs = {"out": wrong(inputs).to(base["out"].dtype)}
    return compare(problem, shape, inputs, oracle(problem, shape, inputs), base, outputs)


GATES = [cut(s, token_count=128, out_features=1024) for s in GATE.shapes.values()]
SUMS = [cut(s, token_count=128) for s in SUM.shapes.values()]


@pytest.mark.parametrize("shape", GATES, ids=lambda s: s.id)
def test_gate_without_the_product_fails(shape):
    assert not judged(GATE, shape, lambda i: 0.5 * i["post_mul_mat"]).passed
    assert not judged(GATE, shape, lambda i: torch.sigmoid(i["bias"]) * i["post_mul_mat"]).passed


@pytest.mark.parametrize("shape", GATES, ids=lambda s: s.id)
def test_gate_in_separate_bf16_steps_passes(shape):
    def unfused(i):
        logits = torch.nn.functional.linear(i["hidden_states"].float(), i["weight"].float(), i["bias"].float())
        return torch.sigmoid(logits).bfloat16() * i["post_mul_mat"]

    assert judged(GATE, shape, unfused).passed


def test_gate_agrees_with_a_plain_loop():
    inputs = GATE.make_inputs(cut(GATE.shape("6"), token_count=4, hidden_size=64, out_features=8), 1, "cpu")
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    found = GATE.reference(GATE.shape("6"))(**wide)
    for t in range(4):
        for o in range(8):
            logit = sum(a * b for a, b in zip(wide["hidden_states"][t], wide["weight"][o], strict=True))
            gate = 1 / (1 + torch.exp(-(logit + wide["bias"][o])))
            assert torch.isclose(found[t, o], gate * wide["post_mul_mat"][t, o], rtol=1e-12)


def test_one_feature_gates_the_whole_row():
    shape = cut(GATE.shape("12"), token_count=5)
    inputs = GATE.make_inputs(shape, 1, "cpu")
    assert inputs["weight"].shape[0] == 1
    out = GATE.reference(shape)(**inputs)
    ratio = out.double() / inputs["post_mul_mat"].double()
    assert out.shape == inputs["post_mul_mat"].shape
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-2, equal_nan=True)


@pytest.mark.parametrize("shape", SUMS, ids=lambda s: s.id)
def test_sum_that_leaves_a_slot_out_fails(shape):
    factor = shape.init_kwargs["routed_scaling_factor"]
    for slot in (0, -1):
        wrong = lambda i, slot=slot: factor * (i["expert_outputs"].sum(1) - i["expert_outputs"][:, slot])  # noqa: E731
        assert not judged(SUM, shape, wrong).passed
    assert not judged(SUM, shape, lambda i: i["expert_outputs"].float().mean(1) * factor).passed


def test_sum_without_the_factor_fails_where_there_is_one():
    shape = cut(SUM.shape("7"), token_count=64)
    assert shape.init_kwargs["routed_scaling_factor"] != 1
    assert not judged(SUM, shape, lambda i: i["expert_outputs"].float().sum(1)).passed


@pytest.mark.parametrize("shape", SUMS, ids=lambda s: s.id)
def test_sum_as_a_matrix_product_passes(shape):
    factor = shape.init_kwargs["routed_scaling_factor"]
    ones = torch.full((1, shape.input_kwargs["top_k"]), factor)
    assert judged(SUM, shape, lambda i: (ones @ i["expert_outputs"].float()).squeeze(1)).passed


def test_partial_sums_in_bf16_fail_where_slots_cancel():
    shape = SUM.shape("7")
    inputs = SUM.corner_cases(shape, 1, "cpu")["cancelling"]()
    base = declared(SUM, shape, inputs)
    total = torch.zeros_like(base["out"])
    for slot in inputs["expert_outputs"].unbind(1):
        total = total + slot
    total = total * shape.init_kwargs["routed_scaling_factor"]
    assert not compare(SUM, shape, inputs, oracle(SUM, shape, inputs), base, {"out": total}).passed
