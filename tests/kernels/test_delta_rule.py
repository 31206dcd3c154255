"""Recurrences and the convolution of kernels/h200."""

import pytest
import torch

from atrex.problems.compare import oracle
from tests.kernels import emulator
from tests.kernels.emulator import load_candidate
from tests.kernels.judging import judge, judge_choices, judge_corners, judge_sizes
from tests.suite.cases import SUITE, drawn, shape_of

HEADS = {"num_q_heads": 1, "num_v_heads": 2, "key_dim": 128, "value_dim": 128}
KEYS = {"num_k_heads": 1, "num_v_heads": 2, "key_dim": 128, "value_dim": 128}


def test_all_configurations_of_the_output_agree_with_the_reference():
    def asked(k):
        chunks = -(-k["token_count"] // k["chunk_size"])
        return k["batch_size"] * k["num_v_heads"] * chunks, k["value_dim"]

    module = load_candidate("chunk_delta_rule_output")
    judge_choices(module, "chunk_delta_rule_output", asked,
                  lambda k, choice: {**HEADS, "batch_size": 2, "token_count": 130})  # fmt: skip


def test_corner_cases_of_the_output_agree_with_the_reference():
    judge_corners(load_candidate("chunk_delta_rule_output"), "chunk_delta_rule_output", batch_size=1, token_count=64,
                  **HEADS)  # fmt: skip


def test_all_configurations_of_the_state_agree_with_the_reference():
    module = load_candidate("chunk_gated_delta_rule_state")
    judge_choices(module, "chunk_gated_delta_rule_state",
                  lambda k: (k["batch_size"] * k["num_v_heads"], k["value_dim"]),
                  lambda k, choice: {**KEYS, "batch_size": 2, "token_count": 130, "state_count": 3})  # fmt: skip


def test_corner_cases_of_the_state_agree_with_the_reference():
    judge_corners(load_candidate("chunk_gated_delta_rule_state"), "chunk_gated_delta_rule_state", batch_size=1,
                  token_count=64, state_count=3, **KEYS)  # fmt: skip


def test_all_configurations_of_the_update_agree_with_the_reference():
    def smaller(k, choice):
        return {**HEADS, "batch_size": 1, "token_count": min(k["token_count"], 150), "state_count": 3, "padding": 0}

    judge_choices(load_candidate("gated_delta_rule_update"), "gated_delta_rule_update",
                  lambda k: (k["token_count"], k["batch_size"] * k["num_v_heads"]), smaller)  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 12, 13, 64, 130])
@pytest.mark.parametrize("init", [(1.0, 20.0, True), (2.0, 1.0, True)])
def test_the_update_agrees_with_the_reference(tokens, init):
    named = dict(zip(("softplus_beta", "softplus_threshold", "use_qk_l2norm"), init, strict=True))
    judge_sizes(load_candidate("gated_delta_rule_update"), "gated_delta_rule_update", named, batch_size=3,
                token_count=tokens, state_count=5, padding=1, **HEADS)  # fmt: skip


def test_corner_cases_of_the_update_agree_with_the_reference():
    judge_corners(load_candidate("gated_delta_rule_update"), "gated_delta_rule_update", batch_size=1, token_count=20,
                  state_count=2, **HEADS)  # fmt: skip


@pytest.mark.parametrize("tokens", [7, 70])
def test_the_update_takes_keys_of_any_length(tokens):
    shape = shape_of("gated_delta_rule_update", {"use_qk_l2norm": False}, batch_size=1, token_count=tokens,
                     state_count=2, **HEADS)  # fmt: skip
    inputs = drawn("gated_delta_rule_update", shape)
    # Of length one beforehand: longer ones make the state grow without bounds.
    inputs["k"] = torch.nn.functional.normalize(inputs["k"].float(), dim=-1).to(inputs["k"].dtype)
    judge(load_candidate("gated_delta_rule_update"), "gated_delta_rule_update", shape, inputs)


def test_the_update_stays_stable_where_keys_are_alike_and_nothing_decays():
    # No operator's inputs: single rows of the state, which are then small differences, may miss the suite's bound.
    operator = "gated_delta_rule_update"
    shape = shape_of(operator, batch_size=1, token_count=128, state_count=2, **HEADS)
    inputs = drawn(operator, shape)
    inputs["k"][:] = inputs["k"][:, :1].clone()
    inputs["b"] += 6
    inputs["a"] -= 20
    exact = oracle(SUITE.problem(operator), shape, inputs)
    with emulator.stream():
        out = load_candidate(operator).Model(**shape.init_kwargs)(*inputs.values())["out"]
    for got, expected in ((out, exact["out"]), (inputs["initial_state"], exact["initial_state"])):
        assert (got.double() - expected).norm() < 3e-3 * expected.norm()


TOKENS = [2, 31, 32, 33, 34, 64, 65, 128, 257, 514, 1024, 2051]


@pytest.mark.parametrize("tokens", TOKENS)
def test_the_convolution_agrees_with_the_reference(tokens):
    judge_sizes(load_candidate("causal_conv1d"), "causal_conv1d", token_count=tokens, dim=19)


@pytest.mark.parametrize(("width", "activation"), [(2, "silu"), (3, None), (5, "silu")])
def test_the_convolution_takes_other_widths(width, activation):
    module = load_candidate("causal_conv1d")
    judge_sizes(module, "causal_conv1d", {"activation": activation}, token_count=100, dim=16, width=width)


def test_corner_cases_of_the_convolution_agree_with_the_reference():
    for channels in (20, 5):
        judge_corners(load_candidate("causal_conv1d"), "causal_conv1d", token_count=64, dim=channels)
