"""Gates, rotations and the cache of kernels/h200."""

import pytest
import torch

from tests.kernels.emulator import load_candidate
from tests.kernels.judging import judge, judge_choices, judge_corners, judge_sizes
from tests.suite.cases import drawn, shape_of


def test_all_configurations_of_silu_and_mul_agree_with_the_reference():
    def asked(k):
        *rows, width = k["shape"]
        return torch.Size(rows).numel(), width // 2

    judge_choices(load_candidate("silu_and_mul"), "silu_and_mul", asked,
                  lambda k, choice: {"shape": [3, k["shape"][-1]]})  # fmt: skip


@pytest.mark.parametrize("shape", [[2, 7, 1536], [3, 260], [1, 16]])
def test_silu_and_mul_takes_other_shapes(shape):
    judge_sizes(load_candidate("silu_and_mul"), "silu_and_mul", shape=shape)


def test_corner_cases_of_silu_and_mul_agree_with_the_reference():
    judge_corners(load_candidate("silu_and_mul"), "silu_and_mul", shape=[3, 1536])


def test_silu_and_mul_takes_rows_that_lie_apart():
    module, shape = load_candidate("silu_and_mul"), shape_of("silu_and_mul", shape=[70, 512])
    module.config = lambda *_: (2, 4)
    inputs = drawn("silu_and_mul", shape)
    inputs["x"] = torch.full((70, 528), float("nan"), dtype=inputs["x"].dtype)[:, :512].copy_(inputs["x"])
    judge(module, "silu_and_mul", shape, inputs)


def heads_of(k):
    return k["num_heads"], k["num_kv_heads"]


def test_all_configurations_of_fused_qkv_rope_agree_with_the_reference():
    module = load_candidate("fused_qkv_rope")
    # Half of what is rotated, which config is told, is in the initial arguments: all of the head, or 64 of 256.
    judge_choices(module, "fused_qkv_rope",
                  lambda k: (k["total_tokens"], *heads_of(k), 32 if k["head_dim"] == 256 else k["head_dim"] // 2),
                  lambda k, choice: {"total_tokens": min(k["total_tokens"], choice[2] + 1)})  # fmt: skip


@pytest.mark.parametrize(("dim", "rope"), [(128, 128), (96, 64)])
def test_corner_cases_of_fused_qkv_rope_agree_with_the_reference(dim, rope):
    sizes = {"num_heads": 6, "num_kv_heads": 2, "head_dim": dim}
    judge_corners(
        load_candidate("fused_qkv_rope"), "fused_qkv_rope", {**sizes, "rope_dim": rope}, total_tokens=3, **sizes
    )


def test_all_configurations_of_mrope_agree_with_the_reference():
    def asked(k):
        return k["token_count"] * (k["num_query_heads"] + k["num_kv_heads"]), k["rotary_dim"] // 2

    judge_choices(load_candidate("mrope"), "mrope", asked, lambda k, choice: {"token_count": 5})


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("neox", "size", "rotary"), [(True, 128, 128), (True, 96, 64), (False, 128, 128), (False, 96, 96)]
)
def test_corner_cases_of_mrope_agree_with_the_reference(interleaved, neox, size, rotary):
    half = rotary // 2
    init = {"head_size": size, "rotary_dim": rotary, "mrope_section": [half - 2 * (half // 3), half // 3, half // 3],
            "mrope_interleaved": interleaved, "is_neox_style": neox}  # fmt: skip
    judge_corners(load_candidate("mrope"), "mrope", init, only=["one_token", "ragged_tail"], token_count=7,
                  num_query_heads=3, num_kv_heads=1, head_size=size, rotary_dim=rotary)  # fmt: skip


def test_all_configurations_of_reshape_and_cache_agree_with_the_reference():
    judge_choices(load_candidate("reshape_and_cache"), "reshape_and_cache",
                  lambda k: (k["shape"][0], k["shape"][1] * k["shape"][2]),
                  lambda k, choice: {"shape": [2 * choice[1] + 1, *k["shape"][1:]]})  # fmt: skip


@pytest.mark.parametrize("heads", [4, 3])
def test_corner_cases_of_reshape_and_cache_agree_with_the_reference(heads):
    judge_corners(load_candidate("reshape_and_cache"), "reshape_and_cache", shape=[21, heads, 64], block_size=16)


def test_reshape_and_cache_takes_caches_with_gaps():
    shape = shape_of("reshape_and_cache", shape=[40, 4, 64], block_size=16)
    inputs = drawn("reshape_and_cache", shape)
    for name in ("key_cache", "value_cache"):
        cache = inputs[name]
        room = torch.full((cache.shape[0], 20, *cache.shape[2:]), 7.0, dtype=cache.dtype)
        inputs[name] = room[:, :16].copy_(cache)
    judge(load_candidate("reshape_and_cache"), "reshape_and_cache", shape, inputs)
