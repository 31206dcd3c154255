"""What a request may ask for: each limit is one line and one status."""

import json

import pytest

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.engine import Terms
from atrex.problems.load import load_suite
from atrex.serve.order import Limits, Refused, read_order

TERMS = Terms(b"the service's own", 1, Budgets())
LIMITS = Limits()
SOURCE = "class Model:\n    pass\n"


@pytest.fixture(scope="module")
def suite():
    return load_suite()


def order(suite, limits=LIMITS, **asked):
    body = json.dumps({"candidate": SOURCE, "problem": "rms_norm", "held_out": False} | asked).encode()
    return read_order(body, suite, "cpu", limits, Budgets(), TERMS)


def refused(suite, limits=LIMITS, **asked):
    with pytest.raises(Refused) as refusal:
        order(suite, limits, **asked)
    assert "\n" not in refusal.value.line
    return refusal.value


def test_an_order_has_the_named_shapes(suite):
    assert [unit.shape for unit in order(suite, shapes="15,46-47").units] == ["15", "46", "47"]


def test_shapes_may_be_a_list(suite):
    assert [unit.shape for unit in order(suite, shapes=[15, "46"]).units] == ["15", "46"]


def test_every_order_has_a_secret_of_its_own(suite):
    secrets = {order(suite, shapes="46").terms.secret for _ in range(3)}
    assert len(secrets) == 3 and TERMS.secret not in secrets


def test_a_source_that_cannot_be_a_candidate_is_taken_and_left_to_the_judge(suite):
    assert order(suite, shapes="46", candidate="def broken(:").units


def test_quick_is_one_unit_with_one_seed(suite):
    quick = order(suite, quick=True, held_out=True)
    assert len(quick.units) == 1 and quick.terms.seed_count == 1 and not quick.terms.readiness


def test_too_much_source_is_413(suite):
    refusal = refused(suite, Limits(source=10))
    assert refusal.status == 413 and "at most 10" in refusal.line


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"problem": "rms_nrom"}, "rms_norm"),
        ({"problem": None}, "problem: "),
        ({"shapes": "999"}, "no shape '999'"),
        ({"shapes": "0-999999999999"}, "shapes: "),
        ({"shapes": ""}, "shapes: "),
        ({"seeds": 0}, "seeds: "),
        ({"seeds": 21}, "at most 20"),
        ({"seeds": "5"}, "seeds: "),
        ({"dsl": "triton"}, "does not run on cpu"),
        ({"dsl": "fortran"}, "fortran"),
        ({"timeout": 5}, "timeout: "),
    ],
)
def test_what_cannot_be_judged_is_422_and_says_why(suite, asked, said):
    refusal = refused(suite, **asked)
    assert refusal.status == 422 and said in refusal.line


def test_too_many_units_are_422(suite):
    refusal = refused(suite, Limits(units=2), shapes="46-49")
    assert refusal.status == 422 and "4 units" in refusal.line


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"candidate": "\\ud800", "problem": "rms_norm"}'])
def test_a_body_that_is_no_order_is_422(suite, body):
    with pytest.raises(Refused) as refusal:
        read_order(body, suite, "cpu", Limits(), Budgets(), TERMS)
    assert refusal.value.status == 422
