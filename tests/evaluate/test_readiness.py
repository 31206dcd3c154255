"""Readiness on the CPU, and confirmation in a second worker; the device's own probes are in tests/gpu."""

import os
import signal

import pytest

from atrex.evaluate.candidates import Candidate
from atrex.evaluate.readiness import Readiness
from atrex.evaluate.unit import Unit, UnitJudge
from tests.evaluate.conftest import HONEST
from tests.evaluate.test_gates import forward

pytestmark = pytest.mark.alone

SHAPE = "46"


@pytest.fixture
def full(setup, suite, tmp_path):
    """full(source, **extras) -> the record of a unit judged with readiness and what else is asked for."""

    def run(source, **extras):
        path = tmp_path / "rms_norm.py"
        path.write_text(source)
        problem = suite.problem("rms_norm")
        candidate = Candidate(path, str(path), str(path), "rms_norm", source)
        return UnitJudge(setup, Unit(candidate, problem, problem.shape(SHAPE), "cpp"), **extras).run()

    return run


def test_a_deterministic_kernel_is_repeatable_and_device_probes_are_not_measured(full):
    found = full(HONEST, readiness=True).readiness
    assert found["bitwise_repeatable"] is True
    assert found["graph_capturable"] is None and found["no_host_sync"] is None and found["why"] == {}


def test_a_kernel_whose_last_bits_vary_is_passed_and_not_repeatable(full):
    noisy = "return (super().forward(x, weight).float() * (1 + 0.003 * (self.calls % 2))).to(x.dtype)"
    record = full(forward(noisy), readiness=True)
    assert record.verdict.status == "passed"
    assert record.readiness["bitwise_repeatable"] is False
    assert "out differs" in record.readiness["why"]["bitwise_repeatable"]


def test_a_kernel_that_dies_in_a_probe_stays_passed(full, monkeypatch):
    def dies(self):
        os.kill(self.worker.pid, signal.SIGKILL)
        return repeat(self)

    repeat = Readiness._repeat
    monkeypatch.setattr(Readiness, "_repeat", dies)
    record = full(HONEST, readiness=True)
    assert record.verdict.status == "passed"
    assert record.readiness["bitwise_repeatable"] is False
    assert record.readiness["why"]["bitwise_repeatable"].startswith("the worker was killed")


def test_where_references_take_long_the_last_seed_serves_as_the_second_case(full, monkeypatch):
    seen = []
    real = Readiness.run

    def run(self, waits):
        seen.append([case.name for case in self._cases])
        return real(self, waits)

    monkeypatch.setattr(Readiness, "run", run)
    assert full(HONEST, readiness=True).readiness["bitwise_repeatable"] is True
    monkeypatch.setattr("atrex.evaluate.unit.LONG_SECONDS", 0.0)
    assert full(HONEST, readiness=True).readiness["bitwise_repeatable"] is True
    assert seen == [["ready0", "ready1"], ["ready0", "seed1"]]


def test_without_readiness_nothing_is_probed(full):
    assert full(HONEST).readiness is None


def test_confirmation_keeps_both_measurements_and_scores_the_second(full):
    record = full(HONEST, confirm=True)
    assert record.verdict.status == "passed"
    assert record.performance.median_us > 0 and record.confirm["median_us"] > 0
    assert 0 < record.confirm["cold_start_seconds"] <= record.compile.seconds + 5
    roofline = record.roofline
    assert pytest.approx(roofline.roofline_us / record.confirm["median_us"]) == roofline.S


def test_a_candidate_that_is_right_in_one_process_only_fails_the_confirmation(full):
    # a candidate's build cache outlives its processes
    once = (
        "import os\nflag = os.path.join(os.path.dirname(__file__), 'cache', 'seen')\nout = super().forward(x, weight)\n"
        "if self.calls == 1 and os.path.exists(flag): self.late = True\n"
        "if self.calls == 1: open(flag, 'w').close()\n"
        "if getattr(self, 'late', False): out[-1] = 0\nreturn out"
    )
    record = full(forward(once), confirm=True)
    assert (record.verdict.status, record.verdict.category) == ("failed", "numeric_mismatch")
