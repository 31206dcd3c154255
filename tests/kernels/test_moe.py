"""Mixtures of experts of kernels/h200, with few multiprocessors."""

import pytest

from tests.kernels.emulator import load_candidate
from tests.kernels.judging import choices, judge, judge_corners, judge_sizes

SMALL = {"hidden_size": 128, "intermediate_size": 128, "num_experts": 8, "top_k": 2}


def init_of(sizes):
    return {name: sizes[name] for name in ("num_experts", "intermediate_size", "top_k")}


def loaded(operator):
    module = load_candidate(operator)
    module.PROGRAMS = 3
    return module


def asked_of(operator):
    if operator == "fused_moe":
        return lambda k: (k["token_count"] * k["top_k"], k["num_experts"], k["hidden_size"], k["intermediate_size"])
    return lambda k: (k["token_count"] * k["top_k"], k["num_experts"])


@pytest.mark.parametrize("operator", ["fused_moe", "fp8_blockscale_fused_moe"])
def test_all_configurations_agree_with_the_reference(operator):
    module, seen = loaded(operator), set()
    for shape in choices(module, operator, asked_of(operator), lambda k, choice: {**SMALL, "token_count": 45}):
        choice = module.config()
        if choice not in seen:
            seen.add(choice)
            shape.init_kwargs.update(init_of(SMALL))
            judge(module, operator, shape, note=choice)


@pytest.mark.parametrize("operator", ["fused_moe", "fp8_blockscale_fused_moe"])
@pytest.mark.parametrize("slots", [8, 200, 6000, 40000])
def test_corner_cases_agree_with_the_reference(operator, slots):
    module = loaded(operator)
    choice = module.config(slots, 8, 128, 128) if operator == "fused_moe" else module.config(slots, 8)
    module.config = lambda *_: choice
    judge_corners(module, operator, init_of(SMALL), token_count=45, **SMALL)


@pytest.mark.parametrize("operator", ["fused_moe", "fp8_blockscale_fused_moe"])
@pytest.mark.parametrize("long", [False, True])
def test_more_slots_than_one_program_sorts(operator, long):
    module, sizes = loaded(operator), {**SMALL, "num_experts": 6}
    choice = module.config(60000, 6, 128, 128) if operator == "fused_moe" else module.config(60000, 6)
    if long:
        assert choice.long
        module.config = lambda *_: choice
    judge_sizes(module, operator, init_of(sizes), token_count=1100, **sizes)


@pytest.mark.parametrize("slots", [60, 900])
def test_fused_moe_takes_sizes_that_fill_no_tile(slots):
    module, sizes = loaded("fused_moe"), {"hidden_size": 136, "intermediate_size": 72, "num_experts": 5, "top_k": 2}
    choice = module.config(slots, 5, 136, 72)
    module.config = lambda *_: choice
    judge_sizes(module, "fused_moe", init_of(sizes), token_count=70, **sizes)
