"""What a ceiling rests on, where our W counts as the release does although a kernel could do less of it."""

import pytest

from atrex.hardware.chip import load_chip
from atrex.problems import load_suite
from atrex.problems.generate import CHIPS
from atrex.roofline.bound import engine_peak, roofline
from atrex.roofline.work import Work

SUITE = load_suite()
MATRIX = [p for p in SUITE.problems.values() if any("matrix" in p.work(s).flops for s in p.shapes.values())]


@pytest.mark.parametrize("problem", MATRIX, ids=lambda problem: problem.operator)
def test_vector_work_beside_matrix_work_sets_no_ceiling(problem):
    """Published counts of it are not always the least possible: 3 operations a block where 2 would do."""
    for shape in [*problem.shapes.values(), *problem.held_out.values()]:
        work = problem.work(shape)
        without = Work({"matrix": work.flops["matrix"]}, work.bytes_read, work.bytes_written)
        for chip in map(load_chip, CHIPS):
            assert roofline(work, chip).us == roofline(without, chip).us, (shape.id, chip.id)


def test_the_count_of_block_scales_has_room():
    problem = SUITE.problem("block_scaled_mm")
    for shape in problem.shapes.values():
        work, kwargs = problem.work(shape), shape.input_kwargs
        blocks = kwargs["k"] // kwargs["group_k"]
        scales = kwargs["m"] * kwargs["n"] // kwargs["group_n"] * blocks
        least = kwargs["m"] * kwargs["n"] * (2 * blocks - 1) + scales
        assert least < work.flops["vector"]["fp32"] == kwargs["m"] * kwargs["n"] * (3 * blocks - 1)


@pytest.mark.parametrize("chip", CHIPS)
def test_both_sixteen_bit_dtypes_run_at_one_rate(chip):
    """The delta rule is charged as bf16; a right kernel takes fp16, which must be no faster."""
    chip = load_chip(chip)
    assert engine_peak(chip, "matrix", "fp16") == engine_peak(chip, "matrix", "bf16")
