"""What is seen of a kernel on the CPU: counters where perf has them, else the clock, and it says which."""

from __future__ import annotations

import textwrap

import pytest

from atrex.errors import UserError
from atrex.optimize import look_cpu as looking
from atrex.optimize.look_cpu import look_cpu, read_counts
from atrex.optimize.observe import evidence
from atrex.problems.load import load_suite
from tests.optimize.lab import SayingLab, kernel

PRINTED = """\
3000,,cycles:u,1000,100.00,,
1500,,instructions:u,1000,100.00,0.50,insn per cycle
<not supported>,,cache-misses,0,100.00,,
40,,branch-misses,1000,50.00,1.2,of all branches
7.1,msec,task-clock,7,100.00,1.0,CPUs utilized
"""
TORCH = """
import torch
class Model(torch.nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
    def forward(self, x, weight):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)
"""
PERF = """\
    #!{python}
    import sys, time, signal
    counts = "9000,,cycles,1,100.00,,\\n4500,,instructions,1,100.00,,\\n<not supported>,,cache-misses,0,0,,\\n"
    def end(*_):
        sys.stderr.write(counts); sys.exit(0)
    signal.signal(signal.SIGINT, end)
    if "-p" in sys.argv:
        time.sleep(60)
    sys.stderr.write(counts)
"""


@pytest.fixture
def seen(tmp_path):
    problem = load_suite().problem("rms_norm")

    def look(source=TORCH):
        (tmp_path / "kernel.py").write_text(source)
        return look_cpu(tmp_path / "kernel.py", problem, problem.shape("0"), "cpp", 60)

    return look


def test_counts_are_read_and_what_was_not_counted_is_absent():
    assert read_counts(PRINTED) == {"cycles": 3000.0, "instructions": 1500.0, "branch-misses": 40.0}


def test_without_counters_it_is_wall_time_and_says_so(seen, monkeypatch):
    monkeypatch.setattr(looking, "_has_counters", lambda perf: False)
    found = seen()
    assert found.tool == "wall time and ATen self time" and "no hardware counters" in found.note
    assert not any(name.startswith("perf.") for name in found.counters) and "perf.cycles" in found.missing
    assert 0 < found.counters["atrex.aten_share"] <= 1 and all(k.name.startswith("aten::") for k in found.kernels)


def test_counters_are_those_of_one_forward(seen, monkeypatch, tmp_path):
    import sys

    perf = tmp_path / "perf"
    perf.write_text(textwrap.dedent(PERF).format(python=sys.executable))
    perf.chmod(0o755)
    monkeypatch.setattr(looking.shutil, "which", lambda name: str(perf))
    found = seen()
    assert found.tool.startswith("perf stat") and found.counters["atrex.instructions_per_cycle"] == 0.5
    assert 0 < found.counters["perf.cycles"] <= 9000 and "perf.cache-misses" in found.missing


@pytest.mark.parametrize(
    "source", ["raise OSError('no such thing')", "class Model: pass", "print('{')\nclass Model: 1"]
)
def test_a_kernel_that_does_not_run_is_one_line(seen, source):
    with pytest.raises(UserError, match="cannot be looked at on the CPU"):
        seen(source)


def test_the_evidence_names_aten_where_the_time_goes_there(begin, seen, monkeypatch):
    monkeypatch.setattr(looking, "_has_counters", lambda perf: False)
    supervisor, campaign = begin()
    supervisor.submit(kernel())
    profile = seen()
    profile.counters["atrex.aten_share"] = 0.9

    class Looking(SayingLab):
        def look(self, source, shape):
            return profile

    found = evidence(campaign, campaign.incumbent, Looking())
    assert found.bottleneck.startswith("time in ATen operations") and found.tool.startswith("wall time")


def test_a_profiler_that_fails_is_a_note_and_the_clocks_speak(begin):
    supervisor, campaign = begin()
    supervisor.submit(kernel())

    class Failing(SayingLab):
        def look(self, source, shape):
            raise UserError("no counters for you")

    found = evidence(campaign, campaign.incumbent, Failing())
    assert found.tool.startswith("the judge's clocks") and "no counters for you" in found.notes[0]
