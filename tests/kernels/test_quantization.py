"""Quantization and the top-k filter of kernels/h200."""

import pytest
import torch

from tests.kernels import emulator
from tests.kernels.emulator import load_candidate
from tests.kernels.judging import judge_choices, judge_corners, judge_sizes
from tests.suite.cases import forward, shape_of


def test_all_configurations_of_per_token_quantization_agree_with_the_reference():
    judge_choices(load_candidate("fp8_dynamic_per_token_quant"), "fp8_dynamic_per_token_quant",
                  lambda k: (k["token_count"], k["hidden_size"]),
                  lambda k, choice: {"token_count": 2 * choice[1] + 1})  # fmt: skip


def test_all_configurations_of_group_quantization_agree_with_the_reference():
    # Groups that a few tokens have, and one more token than whole programs take.
    judge_choices(load_candidate("per_token_group_quant_fp8"), "per_token_group_quant_fp8",
                  lambda k: (k["token_count"] * k["hidden_size"] // 128, 128),
                  lambda k, choice: {"token_count": 2 * choice[1] * 128 // 1152 + 1, "hidden_size": 1152})  # fmt: skip


@pytest.mark.parametrize("operator", ["fp8_dynamic_per_token_quant", "per_token_group_quant_fp8"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_quantization_takes_less_than_a_tile(operator, tokens):
    module = load_candidate(operator)
    module.config = lambda *_: (16, 64, 32)
    judge_sizes(module, operator, token_count=tokens, hidden_size=256)


@pytest.mark.parametrize("operator", ["fp8_dynamic_per_token_quant", "per_token_group_quant_fp8"])
def test_corner_cases_agree_with_the_reference(operator):
    judge_corners(load_candidate(operator), operator, token_count=3, hidden_size=1152)


@pytest.mark.parametrize("width", [64, 2048, 4215, 9000, 20000])
@pytest.mark.parametrize("k", [50, 1])
def test_the_filter_agrees_with_the_reference(width, k):
    judge_sizes(load_candidate("topk_filter"), "topk_filter", {"top_k": k}, seq_len=3, hidden_size=width)


def test_all_configurations_of_the_filter_agree_with_the_reference():
    def smaller(k, choice):
        return {"seq_len": 2, "hidden_size": min(k["hidden_size"], 3 * (choice.piece or 4096) + 5)}

    judge_choices(load_candidate("topk_filter"), "topk_filter", lambda k: (k["seq_len"], k["hidden_size"], 50),
                  smaller)  # fmt: skip


@pytest.mark.parametrize("width", [2048, 9000])
def test_the_filter_s_corner_cases_agree_with_the_reference(width):
    judge_corners(load_candidate("topk_filter"), "topk_filter", seq_len=3, hidden_size=width)


def odd_rows():
    x = torch.randn(6, 4096, generator=torch.Generator().manual_seed(0))
    x[0, 5] = x[1, :60] = float("nan")
    x[2] = -0.0
    x[2, ::2] = 0.0
    x[3] = -float("inf")
    x[3, :10] = float("inf")
    x[4] = torch.arange(4096.0).flip(0)
    x[5] = torch.arange(4096.0)
    return x


@pytest.mark.parametrize("parts", [1, 3])
def test_the_filter_takes_nan_zeros_infinities_and_sorted_rows_as_the_reference_does(parts):
    x = torch.cat([odd_rows()] * parts, dim=1)
    with emulator.stream():
        got = load_candidate("topk_filter").Model(50)(x)
    expected = forward("topk_filter", shape_of("topk_filter"), {"logits": x})["out"]
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)


def distributions(width):
    """Rows that no bell describes: powers, steps, two bells, subnormal, huge, few values, infinities, NaN."""
    x = torch.randn(12, width, generator=torch.Generator().manual_seed(3))
    x[0] = x[0] ** 5
    x[1] = torch.exp(4 * x[1])
    x[2] = 0.5
    x[3, : width // 2] += 30
    x[4] = -x[4].abs()
    x[5] *= 1e-39
    x[6] *= 1e25
    x[7] = torch.round(x[7])
    x[8, 3] = 3e38
    x[9] = -torch.inf
    x[9, 5:9] = 1.0
    x[10] = torch.where(x[10] > 2, torch.inf, x[10])
    x[11] = torch.where(x[11].abs() < 0.01, float("nan"), x[11])
    return x


@pytest.mark.parametrize("width", [100, 2048, 8200])
@pytest.mark.parametrize("k", [1, 13, 50])
def test_the_filter_takes_other_distributions(width, k):
    x = distributions(width)
    with emulator.stream():
        got = load_candidate("topk_filter").Model(k)(x)
    expected = forward("topk_filter", shape_of("topk_filter", {"top_k": k}), {"logits": x})["out"]
    torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
