"""Verdicts of the gates, each for one thing that a candidate does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atrex.scoring.records import Status
from tests.evaluate.conftest import HONEST

pytestmark = pytest.mark.alone

RIGHT = "return super().forward(x, weight)"


def outcome(record):
    verdict = record.verdict
    return (verdict.status.value, verdict.stage.value if verdict.stage else None, verdict.category)


def forward(body, init="pass"):
    body = body.replace("\n", "\n        ")
    return (
        f"import os, signal, sys, threading, time, torch\n{init}\nHonest = None\n"
        + HONEST.replace("class Model", "class Honest")
        + f"""
class Model(Honest):
    calls = 0
    def forward(self, x, weight):
        self.calls += 1
        {body}
"""
    )


def test_an_honest_fallback_passes_with_every_part_of_its_record(judge):
    record = judge(HONEST)
    assert outcome(record) == ("passed", None, None)
    assert record.correct and record.correctness.published_check
    assert len(record.correctness.cases) >= 5
    assert record.performance.n == 20 and record.performance.method == "monotonic"
    assert record.performance.p10_us <= record.performance.median_us <= record.performance.p90_us
    assert 0 < record.roofline.S <= 1 and record.roofline.attainable_S >= record.roofline.S
    assert record.adoption.share == 0 and record.verdict.shortcut == "torch"
    assert record.confinement["parent_death_signal"]


def test_held_out_shapes_are_checked_and_never_timed(judge):
    record = judge(HONEST, shape="h0", held_out=True)
    assert record.verdict.status is Status.PASSED
    assert record.performance is None and record.roofline is None


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import no_such_package\nModel = 1", ("failed", "compile", "exception")),
        ("Model = 3", ("failed", "compile", "not_a_module")),
        ("class Model: pass", ("failed", "compile", "not_a_module")),
        ("import torch\nraise SystemExit(0)\nModel = 1", ("failed", "compile", "exception")),
        ("import os\nprint('PASSED')\nos._exit(0)\nModel = 1", ("failed", "compile", "exception")),
        (forward("raise RuntimeError('boom')"), ("failed", "runtime", "exception")),
        (forward("print('PASSED', flush=True)\nos._exit(0)"), ("failed", "compile", "exception")),
        (forward("return torch.zeros_like(x)"), ("failed", "runtime", "numeric_mismatch")),
        (forward("return x"), ("failed", "runtime", "interface")),
        (forward("return super().forward(x, weight).float()"), ("failed", "runtime", "interface")),
        (forward("return super().forward(x, weight)[None]"), ("failed", "runtime", "interface")),
        (forward("return super().forward(x, weight).T.contiguous().T"), ("failed", "runtime", "interface")),
        (forward("return {'y': super().forward(x, weight)}"), ("failed", "runtime", "interface")),
        (forward("return 'PASSED'"), ("failed", "runtime", "interface")),
        (forward("out = super().forward(x, weight)\nx.zero_()\nreturn out"), ("failed", "runtime", "interface")),
        (forward("out = super().forward(x, weight)\nx.copy_(out)\nreturn x"), ("failed", "runtime", "interface")),
        (forward("return torch.empty_like(x)"), ("failed", "runtime", "numeric_mismatch")),
    ],
)
def test_what_a_candidate_does_decides_its_category(judge, source, expected):
    assert outcome(judge(source)) == expected


def test_one_output_may_come_in_a_dict_that_names_it(judge):
    assert judge(forward('return {"out": super().forward(x, weight)}')).verdict.status == "passed"
    refused = judge(forward('return {"y": super().forward(x, weight)}'))
    assert outcome(refused) == ("failed", "runtime", "interface") and "expected ['out']" in refused.verdict.reason


def test_an_exception_after_the_first_forward_is_a_runtime_exception(judge):
    record = judge(forward("if self.calls > 1: raise ValueError('later')\nreturn super().forward(x, weight)"))
    assert outcome(record) == ("failed", "runtime", "exception")
    assert "later" in record.verdict.reason


def test_a_segfault_is_that_units_verdict_and_the_next_unit_runs(judge):
    crash = "if self.calls > 1: os.kill(os.getpid(), signal.SIGSEGV)\nreturn super().forward(x, weight)"
    record = judge(forward(crash))
    assert outcome(record) == ("failed", "runtime", "exception") and "SIGSEGV" in record.verdict.reason
    assert judge(HONEST).verdict.status is Status.PASSED


def test_a_hang_is_killed_although_it_ignores_signals(judge):
    hang = (
        "if self.calls > 1:\n    for s in (signal.SIGTERM, signal.SIGINT): signal.signal(s, signal.SIG_IGN)\n"
        "    time.sleep(600)\nreturn super().forward(x, weight)"
    )
    record = judge(forward(hang))
    assert outcome(record) == ("failed", "runtime", "timeout")
    assert record.seconds < 30


def test_memory_is_watched_by_resident_size(judge, setup):
    limits, setup.zygote.limits = setup.zygote.limits, replace(setup.zygote.limits, memory=2 << 30)
    try:
        greedy = "if self.calls > 1: self.kept = torch.ones(1 << 30)\ntime.sleep(0.5)\n" + RIGHT
        record = judge(forward(greedy))
    finally:
        setup.zygote.limits = limits
    assert outcome(record) == ("failed", "runtime", "exception")
    assert "memory" in record.verdict.reason


def test_wrong_numbers_name_the_worst_element_and_still_have_an_adoption(judge):
    record = judge(forward("out = super().forward(x, weight)\nout[-1, -3:] = 0\nreturn out"))
    assert outcome(record) == ("failed", "runtime", "numeric_mismatch")
    where = record.correctness.where
    assert where.output == "out" and len(where.index) == 2 and where.index[1] >= 509
    assert where.expected is not None and where.got == 0
    assert record.adoption is not None and record.performance is None and record.roofline.S is None


def test_a_slow_but_correct_unit_is_over_budget_and_stays_correct(judge):
    slow = "if self.calls > 8: time.sleep(0.2)\nreturn super().forward(x, weight)"
    record = judge(forward(slow))
    assert outcome(record) == ("failed", "performance", "over_budget")
    assert record.correct and record.performance is None and record.roofline.S is None


def test_a_cached_answer_is_caught_in_the_timed_calls(judge):
    cache = (
        "key = tuple(x.shape)\nif self.calls > 30 and key in self.kept: return self.kept[key].clone()\n"
        "self.kept[key] = super().forward(x, weight)\nreturn self.kept[key]"
    )
    record = judge(forward("if not hasattr(self, 'kept'): self.kept = {}\n" + cache))
    assert outcome(record) == ("failed", "runtime", "integrity")


def test_work_left_to_a_thread_after_the_return_is_caught(judge):
    deferred = (
        "out = torch.empty_like(x)\n"
        "def later(result=super().forward(x, weight)):\n    time.sleep(0.002)\n    out.copy_(result)\n"
        "if self.calls < 20: later()\nelse: threading.Thread(target=later).start()\nreturn out"
    )
    assert outcome(judge(forward(deferred))) == ("failed", "runtime", "integrity")


def test_a_forged_clock_is_caught_by_the_judges_own(judge):
    forged = (
        "if self.calls == 1:\n    real = time.perf_counter_ns\n    start = real()\n"
        "    time.perf_counter_ns = lambda: start + (real() - start) // 50\n"
        "torch.randn(400, 400) @ torch.randn(400, 400)\nreturn super().forward(x, weight)"
    )
    assert outcome(judge(forward(forged))) == ("failed", "runtime", "integrity")


def test_flooding_stdout_neither_blocks_nor_fills_the_record(judge):
    record = judge(forward("print('x' * 1000000, flush=True)\nraise RuntimeError('end')"))
    assert outcome(record) == ("failed", "runtime", "exception")
    assert len(record.log) <= 2000


def test_a_subclass_that_computes_when_looked_at_is_refused(judge):
    lazy = "return super().forward(x, weight).as_subclass(Lazy)"
    record = judge(forward(lazy, init="class Lazy(torch.Tensor): pass"))
    assert outcome(record) == ("failed", "runtime", "interface")
    assert "plain torch.Tensor" in record.verdict.reason


@pytest.mark.parametrize(
    "lie",
    [
        "{'us': -1.0}",
        "{'us': 'fast'}",
        "{'us': float('nan')}",
        "{'us': 1.0, 'launch_us': 1.0, 'structure': 'tensor', 'outputs': 7}",
        "{}",
        "{'outputs': [{}] * 3, 'structure': None}",
    ],
)
def test_a_worker_that_answers_nonsense_fails_its_unit_and_not_the_judge(judge, lie):
    patch = (
        "import gc\n"
        "if self.calls > 12:\n    for o in gc.get_objects():\n"
        "        if type(o).__name__ == 'Channel':\n"
        f"            type(o).send = lambda self, m, real=type(o).send: real(self, {lie} if 'us' in m else m)\n"
        "            break\n    self.calls = -1000\n"
    )
    assert outcome(judge(forward(patch + RIGHT))) == ("failed", "runtime", "integrity")


def test_the_outputs_form_is_known_from_the_cases_and_costs_no_reference(judge, monkeypatch):
    from atrex.evaluate import performance

    asked, real = [], performance.expected

    def counted(problem, shape, name, inputs, fp8):
        asked.append(name)
        return real(problem, shape, name, inputs, fp8)

    monkeypatch.setattr(performance, "expected", counted)
    assert judge(HONEST).verdict.status == "passed"
    assert [name for name in asked if name != "batch"] == ["timed call"] * performance.SPOT_CHECKS
