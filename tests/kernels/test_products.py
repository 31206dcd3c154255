"""Warp-specialized products of kernels/h200, on a machine with few multiprocessors, in orders drawn from seeds."""

import operator

import pytest

from tests.kernels.emulator import load_candidate
from tests.kernels.judging import choices, judge, judge_corners, judge_sizes

SEEDS = [1, 2, 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_all_configurations_of_block_scaled_mm_agree_with_the_reference(seed):
    module = load_candidate("block_scaled_mm")
    module.UNITS = 3  # some programs take another tile, the last wave is not whole

    def smaller(k, choice):
        # Warpgroups start apart where a tile has at least eight k-blocks.
        rows = 2 * 64 * choice["WAVES"]
        return {"m": (2 if choice["LEAD"] else 1) * rows + 37, "n": 256, "k": 1024 if choice["LEAD"] else 384}

    for shape in choices(module, "block_scaled_mm", operator.itemgetter("m", "n", "k"), smaller):
        judge(module, "block_scaled_mm", shape, seed=seed, note=module.config())


@pytest.mark.parametrize(("m", "n", "k"), [(250880, 384, 2048), (33000, 384, 512), (65536, 256, 512)])
def test_configurations_of_other_sizes_of_block_scaled_mm_agree_with_the_reference(m, n, k):
    module = load_candidate("block_scaled_mm")
    choice = module.config(m, n, k)
    module.UNITS, module.config = 3, lambda *_: choice
    judge_sizes(module, "block_scaled_mm", m=293, n=n, k=min(k, 1024))


@pytest.mark.parametrize("units", [1, 5])
def test_block_scaled_mm_goes_from_tile_to_tile(units):
    module = load_candidate("block_scaled_mm")
    module.UNITS = units
    judge_sizes(module, "block_scaled_mm", m=300, n=384, k=256)


def test_block_scaled_mm_takes_wide_groups():
    judge_sizes(load_candidate("block_scaled_mm"), "block_scaled_mm", {"group_n": 256}, m=70, n=512, k=256, group_n=256)


def test_corner_cases_of_block_scaled_mm_agree_with_the_reference():
    judge_corners(load_candidate("block_scaled_mm"), "block_scaled_mm", m=64, n=256, k=384)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_configurations_of_linear_sigmoid_mul_agree_with_the_reference(seed):
    module = load_candidate("linear_sigmoid_mul")
    module.UNITS = 3

    def smaller(k, choice):
        if k["out_features"] == 1:
            return {"token_count": 5, "hidden_size": 600, "columns": 2056}
        return {"token_count": 165, "hidden_size": 512, "out_features": choice["BLOCK_N"] + 32}

    asked = operator.itemgetter("token_count", "out_features", "hidden_size")
    for shape in choices(module, "linear_sigmoid_mul", asked, smaller):
        judge(module, "linear_sigmoid_mul", shape, seed=seed, note=module.config())


@pytest.mark.parametrize(("units", "tokens"), [(3, 500), (5, 900)])
def test_linear_sigmoid_mul_ends_in_halves_of_tiles(units, tokens):
    module = load_candidate("linear_sigmoid_mul")
    wide = module.config(8037, 4096, 4096)
    assert wide["BLOCK_N"] == 256
    module.UNITS, module.config = units, lambda *_: wide
    judge_sizes(module, "linear_sigmoid_mul", token_count=tokens, hidden_size=256, out_features=320)


def test_corner_cases_of_linear_sigmoid_mul_agree_with_the_reference():
    module = load_candidate("linear_sigmoid_mul")
    judge_corners(module, "linear_sigmoid_mul", token_count=9, hidden_size=256, out_features=288)
    judge_corners(module, "linear_sigmoid_mul", token_count=9, hidden_size=256, out_features=1, columns=256)
