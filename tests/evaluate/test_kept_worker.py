"""Units of one candidate that share a process: what carries over, what must not, and when a fresh one is taken."""

from __future__ import annotations

import os
import time

import pytest

from atrex.evaluate.candidates import Candidate
from atrex.evaluate.engine import Serial, Terms
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.scoring.records import Status
from tests.evaluate.conftest import HONEST

pytestmark = pytest.mark.alone

BEFORE = "        h = x.float()\n"
# `units`: how many Models this process has made, one a unit.
COUNTING = HONEST.replace("import torch\n", "import torch\nunits = 0\n", 1).replace(
    "        super().__init__()\n", "        super().__init__()\n        global units\n        units += 1\n"
)
SHAPES = ("46", "47")


@pytest.fixture
def kept(setup):
    """The session's setup as on a GPU, where workers are kept; it begins and ends with none."""
    setup.let_go()
    setup.reuses = True
    yield setup
    setup.reuses = False
    setup.let_go()


@pytest.fixture
def judged(kept, suite, tmp_path):
    """judged(source, shape) -> (the record, the judge)."""

    def run(source, shape="46", name="rms_norm", **options):
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        problem = suite.problem("rms_norm")
        unit = Unit(Candidate(path, name, name, "rms_norm", source), problem, problem.shape(shape), "cpp")
        judge = UnitJudge(kept, unit, **options)
        return judge.run(), judge

    return run


def pid(setup):
    return setup._kept[1].pid if setup._kept else None


def seen(body):
    """A candidate that runs `body` in forward."""
    return COUNTING.replace(BEFORE, "".join(f"        {line}\n" for line in body.split("\n")) + BEFORE)


def test_the_next_unit_of_the_candidate_is_judged_in_the_same_process(judged, kept):
    first, _ = judged(COUNTING)
    process = pid(kept)
    second, judge = judged(COUNTING, "47")
    assert first.verdict.status is second.verdict.status is Status.PASSED
    assert process and pid(kept) == process and judge._reused
    assert second.confinement == first.confinement and second.compile.artifacts == first.compile.artifacts


def test_another_candidate_gets_another_process_and_the_one_before_is_gone(judged, kept):
    judged(COUNTING)
    process = pid(kept)
    judged(COUNTING + "# another one\n")
    assert pid(kept) != process
    with pytest.raises(ProcessLookupError):
        for _ in range(200):  # the zygote reaps it in its own time
            os.kill(process, 0)
            time.sleep(0.02)


def test_what_fails_only_because_of_the_unit_before_is_judged_again_in_a_fresh_process(judged, kept):
    source = seen("if units > 1: return x[:0]")
    judged(source)
    record, judge = judged(source, "47")
    assert judge._reused and record.verdict.status is Status.PASSED


def test_what_fails_in_a_fresh_process_too_fails(judged, kept, suite):
    width = suite.problem("rms_norm").shape("47").input_kwargs["hidden_size"]
    source = seen(f"if x.shape[1] == {width}: return x * 0")
    assert judged(source)[0].verdict.status is Status.PASSED
    record, judge = judged(source, "47")
    assert judge._reused and record.verdict.category == "numeric_mismatch" and kept._kept is None


@pytest.mark.parametrize("body", ["os._exit(3)", "[0 for _ in iter(int, 1)]"], ids=["ends", "hangs"])
def test_a_process_that_ends_or_hangs_in_its_second_unit_gets_a_fresh_one(judged, kept, body):
    source = seen(f"if units > 1: {body}").replace("import torch\n", "import os\nimport torch\n", 1)
    judged(source)
    record, judge = judged(source, "47")
    assert judge._reused and record.verdict.status is Status.PASSED


def test_a_process_that_dies_between_two_units_is_nobodys_failure(judged, kept):
    judged(COUNTING)
    os.kill(pid(kept), 9)
    record, judge = judged(COUNTING, "47")
    assert judge._reused and record.verdict.status is Status.PASSED


def test_a_failed_unit_leaves_no_process(judged, kept):
    judged(seen("return x * 0"))
    assert kept._kept is None


def test_a_process_that_shares_much_memory_is_not_kept(judged, kept, monkeypatch):
    monkeypatch.setattr("atrex.evaluate.unit.KEPT_BLOCKS", 0)
    assert judged(COUNTING)[0].verdict.status is Status.PASSED and kept._kept is None


def test_operands_of_the_unit_before_are_gone(judged, kept):
    """A module that kept no tensor itself finds none of the first unit alive in the second."""
    body = "if any(ref() is not None for n, ref in refs if n < units): return x[:0]\n"
    body += "refs.append((units, weakref.ref(x)))"
    source = "import weakref\nrefs = []\n" + seen(body)
    judged(source)
    process = pid(kept)
    record, judge = judged(source, "47")
    assert judge._reused and record.verdict.status is Status.PASSED
    assert pid(kept) == process  # else a fresh process had to be asked


def test_confirmation_and_a_fresh_judge_take_fresh_processes(judged, kept):
    judged(COUNTING)
    process = pid(kept)
    record, judge = judged(COUNTING, "47", fresh=True)
    assert not judge._reused and record.verdict.status is Status.PASSED and pid(kept) == process
    source = seen("if units > 1: return x[:0]")
    judged(source)
    record, _ = judged(source, confirm=True)
    assert record.verdict.status is Status.PASSED and record.confirm is not None


def test_blocks_that_were_outgrown_stay_until_the_worker_is_gone(judged, kept):
    judged(COUNTING)
    _, _, bindings = kept._kept
    assert bindings._outgrown and all(block.bytes is not None for block in bindings._outgrown)
    outgrown = list(bindings._outgrown)
    kept.let_go()
    assert all(block.bytes is None for block in outgrown) and bindings.nbytes == 0


def test_a_run_lets_the_last_process_go(kept, suite, tmp_path, monkeypatch):
    monkeypatch.setattr("atrex.evaluate.engine.reuses", lambda setup, terms: True)
    path = tmp_path / "rms_norm.py"
    path.write_text(COUNTING)
    problem = suite.problem("rms_norm")
    candidate = Candidate(path, "a", "a", "rms_norm", COUNTING)
    units = [Unit(candidate, problem, problem.shape(shape), "cpp") for shape in SHAPES]
    terms = Terms(b"secret", 2, kept.budgets, 20, readiness=False)
    records = list(Serial(kept, terms, lambda *_: None).judge(units))
    assert [r.verdict.status for r in records] == [Status.PASSED] * 2 and kept._kept is None
