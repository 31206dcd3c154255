"""Roofline rules, on cited chips and against the published figures."""

import json
from pathlib import Path

import pytest

from atrex.errors import UserError
from atrex.hardware.chip import load_chip
from atrex.roofline.bound import PUBLISHED_CHIPS, engine_peak, published_roofline, roofline
from atrex.roofline.work import Work

GOLDEN = Path(__file__).parents[2].parent / "shared" / "golden" / "operators.json"
H200, A100, L40S, MI355X = (load_chip(name) for name in ("H200", "A100", "L40S", "MI355X"))


def test_memory_bound_unit_takes_bytes_over_bandwidth():
    bound = roofline(Work({"vector": {"fp32": 10}}, bytes_read=3_000_000, bytes_written=1_800_000), H200)
    assert (bound.bound, bound.us) == ("memory", pytest.approx(1.0))


def test_engines_overlap_so_the_largest_counts():
    work = Work({"matrix": {"bf16": 989_400_000}, "vector": {"fp32": 133_800_000}}, bytes_read=480_000)
    bound = roofline(work, H200)
    assert (bound.bound, bound.us) == ("vector", pytest.approx(2.0))


def test_dtypes_share_an_engine_so_they_add():
    work = Work({"matrix": {"bf16": 989_400_000, "fp8_e4m3": 1_978_900_000}})
    bound = roofline(work, H200)
    assert (bound.bound, bound.us) == ("matrix", pytest.approx(2.0))


def test_fp8_on_a_chip_without_it_takes_the_sixteen_bit_peak():
    assert engine_peak(A100, "matrix", "fp8_e4m3") == A100.peaks["matrix"]["bf16"]


def test_vector_fp8_takes_the_fastest_vector_dtype_that_holds_it():
    assert engine_peak(A100, "vector", "fp8_e4m3") == A100.peaks["vector"]["fp16"]


def test_bf16_never_takes_fp16_which_cannot_hold_it():
    assert engine_peak(MI355X, "vector", "bf16") == MI355X.peaks["vector"]["fp32"]


def test_matrix_work_may_run_on_the_vector_units():
    assert engine_peak(load_chip("H20"), "matrix", "int32") == load_chip("H20").peaks["vector"]["fp32"]


def test_float32_products_may_be_split_into_three_tf32_ones():
    assert engine_peak(H200, "matrix", "fp32") == pytest.approx(H200.peaks["matrix"]["tf32"] / 3)


def test_vector_float32_never_borrows_the_matrix_engine():
    assert engine_peak(H200, "vector", "fp32") == H200.peaks["vector"]["fp32"]


def test_integers_are_charged_at_the_float32_rate_where_no_integer_rate_is_listed():
    assert engine_peak(L40S, "vector", "int64") == L40S.peaks["vector"]["fp32"]


def test_no_work_takes_no_time():
    assert roofline(Work(), H200).us == 0


def test_unknown_dtype_and_engine_are_user_errors():
    with pytest.raises(UserError, match="unknown dtype 'fp13'"):
        roofline(Work({"matrix": {"fp13": 1}}), H200)
    with pytest.raises(UserError, match="unknown engine 'tensor'"):
        roofline(Work({"tensor": {"bf16": 1}}), H200)


def test_published_form_knows_only_its_two_chips_by_name():
    with pytest.raises(UserError, match="no published constants for chip 'H200'"):
        published_roofline(1, 1, "bf16", "H200")


def test_published_form_on_a_cited_chip_charges_everything_at_the_matrix_peak():
    assert published_roofline(989_400_000, 1, "bf16", H200) == pytest.approx(1.0)
    assert published_roofline(312_000_000, 1, "fp8_e4m3", A100) == pytest.approx(1.0)


@pytest.mark.skipif(not GOLDEN.exists(), reason="published figures are not beside this checkout")
@pytest.mark.parametrize("chip", sorted(PUBLISHED_CHIPS))
def test_published_roofline_reproduces_every_published_time(chip):
    units = 0
    for operator in json.loads(GOLDEN.read_text()).values():
        for unit in operator["units"].values():
            dtype, flops = next(iter(unit["flops"].items()), ("fp32", 0))
            us = published_roofline(flops, unit["read_bytes"] + unit["write_bytes"], dtype, chip)
            assert us == pytest.approx(unit["sol_ms"][chip] * 1e3, rel=1e-9)
            units += 1
    assert units == 440
