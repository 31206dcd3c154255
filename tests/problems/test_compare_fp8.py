"""What the comparison of quantized outputs accepts and rejects."""

from dataclasses import replace

import pytest
import torch

from atrex.errors import UserError
from atrex.problems.compare import compare, declared, oracle
from atrex.problems.compare_fp8 import fp8_ratio, scale_ratio
from atrex.problems.load import load_problem
from atrex.problems.metadata import Fp8Compare, ScaleCompare
from atrex.problems.model import Shape

from .conftest import edit_json

RULE = Fp8Compare(kind="fp8", scale="scale", off_share=0.1)
ANY_SHARE = Fp8Compare(kind="fp8", scale="scale", off_share=1)
SHAPE = Shape("t", {}, {"token_count": 40, "hidden_size": 2048})


def codes(*values, dtype=torch.float8_e4m3fn):
    return torch.tensor([values]).to(dtype)


def ratio(values, got, scale=1.0, rule=RULE):
    return fp8_ratio(torch.tensor([values], dtype=torch.float64), torch.tensor([scale]), got, rule).read()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_each_code_is_one_from_its_neighbours(dtype):
    every = torch.arange(256, dtype=torch.uint8).view(dtype).to(torch.float32)
    every = every[every.isfinite()].unique()  # ascending, zero once
    assert len(every) in (253, 255)
    for step in (1, 2):
        got = every[step:].to(dtype).reshape(-1, 1)
        found = fp8_ratio(every[:-step].reshape(-1, 1), torch.ones(len(got)), got, ANY_SHARE).read()
        # At most one code off is a matter of how many: here all of them, where all may.
        assert (found[0], found[4]) == ((2, "codes off") if step == 2 else (1, "share of codes that are one off"))


def test_codes_are_judged_at_the_candidates_scale():
    assert ratio([100.0, 3.0], codes(50.0, 1.5), scale=2.0)[0] == 0
    assert ratio([100.0, 3.0], codes(100.0, 3.0), scale=2.0)[0] > 1


def test_either_code_is_right_in_the_middle_and_neither_counts():
    assert ratio([1.0625, 1.0625], codes(1.0, 1.125))[0] == 0
    assert ratio([1.0625 + 1e-8, 1.0625 - 1e-8], codes(1.0, 1.125))[0] == 0
    found = ratio([1.0630, 1.0], codes(1.0, 1.0))
    assert found[0] == pytest.approx(5) and "share" in found[4]


def test_share_of_codes_that_are_one_off():
    values = [1.0] * 20
    assert ratio(values, codes(*[1.125] * 2, *values[2:]))[0] == 1
    found = ratio(values, codes(*values[3:], *[1.125] * 3))
    assert found[0] == pytest.approx(1.5) and found[1] == 17 and "share" in found[4]


def test_a_right_kernels_record_tells_its_distance_from_the_bound():
    values = [1.0] * 80
    found = ratio(values, codes(*[1.125] * 2, *values[2:]))
    assert found[0] == pytest.approx(0.25) and found[2:4] == (0.025, 0.1) and "share" in found[4]


def test_two_codes_off_fails_and_is_named():
    found = ratio([1.0, 2.0, 3.0], codes(1.0, 2.0, 3.5), rule=ANY_SHARE)
    assert found[0] == 2 and found[1] == 2 and found[4] == "codes off"


def test_signs_of_zero_are_equal_and_saturation_is_right():
    assert ratio([0.0, 1e-9, -1e-9], codes(-0.0, -0.0, 0.0))[0] == 0
    assert ratio([460.0, -1e6], codes(448.0, -448.0))[0] == 0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e4m3fnuz])
def test_nan_fails(dtype):
    got = codes(1.0, float("nan"), dtype=dtype)
    for value in (0.0, 1.0, 240.0):
        assert ratio([1.0, value], got)[0] == float("inf")


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), 1 + 2e-6])
def test_wrong_scales_fail(wrong):
    want = torch.tensor([1.0, 1.0])
    rule = ScaleCompare(kind="scale")
    assert scale_ratio(want, torch.tensor([1.0 + 5e-7, 1.0]), rule).read()[0] < 1
    assert scale_ratio(want, torch.tensor([1.0, wrong]), rule).read()[:2] > (1, 0)


@pytest.fixture
def case(suite):
    problem = suite.problem("fp8_dynamic_per_token_quant")
    inputs = problem.make_inputs(SHAPE, 7, "cpu")
    return problem, SHAPE, inputs, oracle(problem, SHAPE, inputs), declared(problem, SHAPE, inputs)


def test_chunks_do_not_change_the_verdict(case, monkeypatch):
    got = {name: t.clone() for name, t in case[-1].items()}
    got["q"].view(torch.uint8)[31, 7] ^= 0x18
    whole = compare(*case, got)
    monkeypatch.setattr("atrex.problems.worst._CHUNK", {"cpu": 2048})
    parts = compare(*case, got)
    assert not whole.passed and parts.index == whole.index == [31, 7] and parts.worst == whole.worst


def test_scales_of_another_shape_fail_as_such(case):
    got = {**case[-1], "scale": case[-1]["scale"][:, None]}
    result = compare(*case, got)
    assert result.output == "scale" and "expected float32[40]" in result.detail


def test_wider_type_only_where_metadata_allows_it(case):
    problem, *rest, base = case
    wide = {**base, "q": base["q"].to(torch.bfloat16)}
    assert not compare(*case, wide).passed
    rules = dict(problem.metadata.compare)
    rules["q"] = rules["q"].model_copy(update={"wider": ("bf16",)})
    allowed = (replace(problem, metadata=problem.metadata.model_copy(update={"compare": rules})), *rest, base)
    assert compare(*allowed, wide).passed
    assert not compare(*allowed, {**wide, "q": wide["q"] * 1.25}).passed
    assert not compare(*allowed, {**wide, "q": wide["q"].float()}).passed


def test_encoding_follows_the_chip(case):
    problem, _, inputs, _, base = case
    other = declared(problem, SHAPE, inputs, fp8="e4m3fnuz")
    assert base["q"].dtype == torch.float8_e4m3fn and other["q"].dtype == torch.float8_e4m3fnuz
    torch.testing.assert_close(other["scale"] * 240, base["scale"] * 448)
    expected = oracle(problem, SHAPE, inputs, fp8="e4m3fnuz")
    assert compare(problem, SHAPE, inputs, expected, other, other).passed
    assert "expected float8_e4m3fnuz" in compare(problem, SHAPE, inputs, expected, other, base).detail


@pytest.mark.parametrize(("key", "value"), [("scale", "nothing"), ("of", "nothing")])
def test_rule_that_names_no_operand_is_the_folders_fault(folder, key, value):
    rule = {"kind": "fp8", "scale": "out", key: value}
    edit_json(folder / "metadata.json", lambda m: m["compare"].update(out=rule))
    with pytest.raises(UserError, match="'nothing' is not an"):
        load_problem(folder)
