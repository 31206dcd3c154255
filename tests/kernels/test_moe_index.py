"""The small kernels around experts of kernels/h200: gating, counting and placing, the sum."""

import pytest

from tests.kernels.emulator import load_candidate
from tests.kernels.judging import judge_choices, judge_corners, judge_sizes


def test_all_configurations_of_gating_agree_with_the_reference():
    judge_choices(load_candidate("moe_topk_gating_softmax"), "moe_topk_gating_softmax",
                  lambda k: (k["token_count"], k["num_experts"]),
                  lambda k, choice: {"token_count": 2 * choice + 1})  # fmt: skip


@pytest.mark.parametrize("experts", [128, 256, 60])
@pytest.mark.parametrize("rows", [1, 4])
def test_corner_cases_of_gating_agree_with_the_reference(experts, rows):
    module = load_candidate("moe_topk_gating_softmax")
    module.config = lambda *_: rows
    judge_corners(module, "moe_topk_gating_softmax", token_count=5, num_experts=experts)


def test_all_configurations_of_the_sum_agree_with_the_reference():
    judge_choices(load_candidate("moe_sum_reduce"), "moe_sum_reduce", lambda k: (k["token_count"], k["hidden_size"]),
                  lambda k, choice: {"token_count": 3})  # fmt: skip


@pytest.mark.parametrize(("top_k", "hidden"), [(8, 256), (6, 100)])
def test_corner_cases_of_the_sum_agree_with_the_reference(top_k, hidden):
    judge_corners(load_candidate("moe_sum_reduce"), "moe_sum_reduce", {"routed_scaling_factor": 2.5}, token_count=3,
                  top_k=top_k, hidden_size=hidden)  # fmt: skip


COUNTS = [(1, 128, 8), (76, 128, 8), (520, 128, 8), (64, 256, 8), (300, 40, 4), (127, 128, 8), (128, 128, 8)]


@pytest.mark.parametrize(("tokens", "experts", "top_k"), COUNTS)
def test_counting_agrees_with_the_reference(tokens, experts, top_k):
    module = load_candidate("moe_count_and_sort")
    sizes = {"token_count": tokens, "num_experts": experts, "top_k": top_k}
    judge_sizes(module, "moe_count_and_sort", {"num_experts": experts}, **sizes)
    judge_corners(module, "moe_count_and_sort", {"num_experts": experts}, **sizes)


@pytest.mark.parametrize(("tokens", "experts", "top_k", "block"),
                         [(1, 128, 8, 128), (76, 128, 8, 128), (520, 128, 8, 128), (64, 256, 8, 16), (300, 40, 4, 64),
                          (200, 128, 8, 64)])  # fmt: skip
def test_placing_agrees_with_the_reference(tokens, experts, top_k, block):
    module = load_candidate("moe_align_block_size")
    sizes = {"token_count": tokens, "num_experts": experts, "top_k": top_k}
    init = {"num_experts": experts, "block_size": block}
    judge_sizes(module, "moe_align_block_size", init, **sizes)
    judge_corners(module, "moe_align_block_size", init, **sizes)
