"""The table says WRONG where something is: a cheat that gets through, a twin that does not, processes that are left."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from atrex.attacks.harness import Attack, Fails, Form, NoGain, Shortcut
from atrex.attacks.harness.expect import either
from atrex.attacks.harness.table import remaining
from atrex.attacks.zero_fill import TWIN, ZEROS

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
BY_TORCH = """
class Model(Honest):
    def forward(self, x, weight):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps) * weight.float()).to(x.dtype)
"""


def fault(table, form):
    (row,) = table.run("made up", Attack((1,), form))
    return row.fault


@needs_compiler
def test_a_cheat_that_gets_through_is_wrong(table):
    assert fault(table, Form({"": TWIN}, TWIN, Fails("integrity"))) == "cheat: expected failed: integrity"


@needs_compiler
def test_another_category_than_the_declared_one_is_wrong(table):
    assert fault(table, Form({"": ZEROS}, TWIN, Fails("integrity"))).startswith("cheat")


@needs_compiler
def test_a_twin_that_fails_is_wrong(table):
    assert "numeric_mismatch" in fault(table, Form({"": ZEROS}, ZEROS, Fails("numeric_mismatch")))


@needs_compiler
def test_a_twin_in_torch_is_no_twin_in_the_dsl(table):
    form = {"cheats": {"": ZEROS}, "twin": BY_TORCH, "expect": Fails("numeric_mismatch")}
    assert "DSL, is 0 %" in fault(table, Form(**form))
    assert fault(table, Form(**form, dominant=False)) is None


@needs_compiler
def test_a_shortcut_must_be_in_the_record(table):
    assert fault(table, Form({"": BY_TORCH}, TWIN, Shortcut("torch"))) is None
    assert fault(table, Form({"": TWIN}, TWIN, Shortcut("torch"))) == "cheat: expected passed, shortcut torch"


@needs_compiler
def test_a_cheat_that_gains_nothing_may_pass_and_a_faster_one_may_not(table):
    slow = TWIN.replace(
        "return rms_norm", "for _ in range(40):\n            rms_norm(x, weight, self.eps)\n        return rms_norm"
    )
    assert fault(table, Form({"": slow}, TWIN, NoGain())) is None
    assert fault(table, Form({"": TWIN}, slow, NoGain())) == "cheat: expected passed, no faster than the twin"


@needs_compiler
def test_one_of_several_outcomes_is_enough(table):
    assert fault(table, Form({"": ZEROS}, TWIN, either(Shortcut("torch"), Fails("numeric_mismatch")))) is None


def test_processes_that_are_left_are_counted_and_ended():
    name = "atrex-leftover"
    code = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{name}', 0, 0, 0); print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child.stdout.readline()
    try:
        assert remaining(name, before={child.pid}) == set()
        assert remaining(name, before=set()) == {child.pid}
        assert child.wait(10) == -9
        assert remaining(name, before=set()) == set()
    finally:
        child.kill()
        child.stdout.close()


def test_a_category_that_no_record_can_have_is_refused():
    with pytest.raises(ValueError, match="numeric_mismatch"):
        Fails("caught")
