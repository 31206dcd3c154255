"""Every shipped problem is sound: wrong outputs fail, honest ones pass, files agree with each other."""

import pytest
import torch

from atrex.problems import load_suite
from atrex.problems.compare import compare, declared, oracle, widened
from atrex.problems.lint import Budget, validate

SUITE = load_suite()
# The whole published list takes minutes here; `atrex suite validate` runs what this leaves out.
SMALL = Budget(bytes=2**18, flops=4e9)
# Where the smallest shape is larger than that.
CHEAP = {
    "attention_forward": Budget(bytes=7e5, flops=1e9),
    "block_scaled_mm": Budget(bytes=8e6, flops=3e9),
    "chunk_delta_rule_output": Budget(bytes=2.7e6, flops=2e8),
    "chunk_gated_delta_rule_state": Budget(bytes=5.4e6, flops=2e8),
    "fp8_blockscale_fused_moe": Budget(bytes=7e6, flops=1e9),
    "fused_add_rms_norm": Budget(bytes=2.1e6, flops=1e9),
    "fused_moe": Budget(bytes=4e6, flops=1e9),
    "fused_rmsnorm_quant": Budget(bytes=1.7e6, flops=1e9),
    "gated_delta_rule_update": Budget(bytes=1.2e6, flops=1e9),
    "mla_decode_attention": Budget(bytes=4e5, flops=1e9),
    "moe_sum_reduce": Budget(bytes=2.4e6, flops=1e9),
    "unified_attention": Budget(bytes=1.1e6, flops=1e9),
}


@pytest.mark.parametrize("operator", SUITE.problems)
def test_operator_is_sound(operator):
    problem = SUITE.problems[operator]
    report = validate(problem, problem.shapes.values(), budget=CHEAP.get(operator, SMALL))
    assert report.failures == []
    assert report.ran


@pytest.mark.parametrize("operator", SUITE.problems)
def test_references_accept_held_out_shapes(operator):
    problem = SUITE.problems[operator]
    ran = 0
    for shape in problem.held_out.values():
        if problem.work(shape).total_bytes > 1.7e7 or problem.work(shape).total_flops > 3e9:
            continue
        inputs = problem.make_inputs(shape, 1, "cpu")
        expected, base = oracle(problem, shape, inputs), declared(problem, shape, inputs)
        assert compare(problem, shape, inputs, expected, base, base).passed
        ran += 1
    assert ran


@pytest.mark.parametrize("operator", SUITE.problems)
def test_held_out_shapes_are_not_listed_ones_and_one_is_larger(operator):
    problem = SUITE.problems[operator]
    listed = [dict(s.input_kwargs) for s in problem.shapes.values()]
    assert all(dict(s.input_kwargs) not in listed for s in problem.held_out.values())
    largest = max(problem.work(s).total_bytes for s in problem.held_out.values())
    assert largest > sorted(problem.work(s).total_bytes for s in problem.shapes.values())[len(listed) // 2]


@pytest.mark.parametrize("sequences", [1, 2, 3, 4, 7, 128, 256])
@pytest.mark.parametrize("context", [1, 2, 64, 100, 128])
def test_attention_lengths_are_ragged_and_keep_their_sum(sequences, context):
    from atrex.suite.lengths import ragged

    found = ragged(sequences, context)
    assert len(found) == sequences and sum(found) == sequences * context and min(found) >= 1
    if sequences >= 3 and context > 2:
        assert len(set(found)) > 2


def test_attention_pages_are_scattered_and_belong_to_one_sequence():
    problem = SUITE.problems["paged_attention_decode"]
    shape = problem.shape("3")
    inputs = problem.make_inputs(shape, 1, "cpu")
    pages = -(-inputs["seq_lens"] // 16)
    used = [inputs["block_tables"][s, : int(n)].tolist() for s, n in enumerate(pages)]
    flat = [page for pages_of_one in used for page in pages_of_one]
    assert len(set(flat)) == len(flat) < len(inputs["k_cache"])
    assert flat != sorted(flat)


def test_scales_vary_by_block():
    problem = SUITE.problems["block_scaled_mm"]
    inputs = problem.corner_cases(problem.shape("0"), 1, "cpu")["ragged_tail"]()
    for name in ("a_scales", "b_scales"):
        scales = inputs[name]
        assert (scales > 0).all() and scales.max() / scales.min() >= 4
        assert (scales.amax(-1) / scales.amin(-1)).median() > 2
    assert inputs["a"].float().abs().amax() == 240


@pytest.mark.parametrize("operator", SUITE.problems)
def test_references_are_as_precise_as_their_inputs(operator):
    """In float64 the reference must not pass through a narrower dtype: it is the oracle."""
    problem = SUITE.problems[operator]
    shape = min(problem.shapes.values(), key=lambda s: problem.work(s).total_bytes)
    inputs = problem.make_inputs(shape, 1, "cpu")
    for tensor in declared(problem, shape, widened(inputs)).values():
        assert tensor.dtype in (torch.float64, torch.int32)
