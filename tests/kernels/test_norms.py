"""Norms of kernels/h200: every configuration of the suite's shapes, corner cases, rows with something between them."""

import pytest
import torch

from tests.kernels.emulator import load_candidate
from tests.kernels.judging import judge, judge_choices, judge_corners
from tests.suite.cases import drawn, shape_of

# Name of the number of rows, and rows that one of them is.
ROWS = {"rms_norm": "token_count", "l2_norm": "num_tokens", "fused_add_rms_norm": "token_count",
        "gated_rms_norm": "rows", "fused_rmsnorm_quant": "token_count"}  # fmt: skip


@pytest.mark.parametrize("operator", ROWS)
@pytest.mark.parametrize(
    "rows", [lambda tile: 2 * tile + 1, lambda tile: max(1, tile - 1)], ids=["tail", "not one tile"]
)
def test_all_configurations_agree_with_the_reference(operator, rows):
    name = ROWS[operator]
    judge_choices(load_candidate(operator), operator, lambda k: (k[name], k["hidden_size"]),
                  lambda k, choice: {name: rows(choice[1])})  # fmt: skip


def test_all_configurations_of_layer_norm_agree_with_the_reference():
    def asked(k):
        *rows, hidden = k["shape"]
        return torch.Size(rows).numel(), hidden

    judge_choices(load_candidate("layer_norm"), "layer_norm", asked,
                  lambda k, choice: {"shape": [2 * choice[1] + 1, 1, k["shape"][-1]]})  # fmt: skip


def test_all_configurations_of_fused_qk_rmsnorm_agree_with_the_reference():
    judge_choices(load_candidate("fused_qk_rmsnorm"), "fused_qk_rmsnorm",
                  lambda k: (k["num_tokens"] * (k["head_num"] + k["kv_head_num"]), k["size_per_head"]),
                  lambda k, choice: {"num_tokens": 3})  # fmt: skip


@pytest.mark.parametrize("operator", ROWS)
@pytest.mark.parametrize("hidden", [128, 1152])
def test_corner_cases_agree_with_the_reference(operator, hidden):
    init = {"hidden_size": hidden} if operator == "l2_norm" else {}
    judge_corners(load_candidate(operator), operator, init, hidden_size=hidden)


def test_corner_cases_of_layer_norm_agree_with_the_reference():
    for hidden in (128, 1152):
        judge_corners(load_candidate("layer_norm"), "layer_norm", shape=[3, 1, hidden])


def test_corner_cases_of_fused_qk_rmsnorm_agree_with_the_reference():
    sizes = {"head_num": 5, "kv_head_num": 1, "size_per_head": 128}
    judge_corners(load_candidate("fused_qk_rmsnorm"), "fused_qk_rmsnorm", sizes, num_tokens=3, **sizes)


@pytest.mark.parametrize("operator", ["rms_norm", "l2_norm", "fused_add_rms_norm"])
@pytest.mark.parametrize(("rows", "config"), [(1, (16, 64, 4)), (70, (16, 64, 4)), (5, (4, 32, 4))])
def test_rows_may_lie_apart(operator, rows, config):
    module, hidden = load_candidate(operator), 128
    module.config = lambda *_: config
    shape = shape_of(operator, {"hidden_size": hidden} if operator == "l2_norm" else {},
                     **{ROWS[operator]: rows, "hidden_size": hidden})  # fmt: skip
    inputs = drawn(operator, shape)
    apart = torch.full((rows, hidden + 16), float("nan"), dtype=inputs["x"].dtype)[:, :hidden]
    inputs["x"] = apart.copy_(inputs["x"])
    judge(module, operator, shape, inputs)
