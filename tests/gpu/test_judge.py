"""The judge on a CUDA device: honest kernels pass, what cheats or breaks is named, and the next unit runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_suite
from tests.evaluate.turns import Turns

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXAMPLES = Path(__file__).parents[2] / "examples" / "candidates"
TORCH = (EXAMPLES / "torch" / "rms_norm.py").read_text().replace("class Model", "class Honest")


@pytest.fixture(scope="module")
def setup():
    from atrex.evaluate.setup import prepare

    made = prepare("cuda:0", Seeds(), 2, Budgets(compile=60, execution=3, performance=5))
    yield made
    made.close()


@pytest.fixture
def judge(setup, tmp_path):
    suite = load_suite()

    def run(source, operator="rms_norm", shape="36", dsl="triton"):
        path = tmp_path / f"{operator}.py"
        path.write_text(source)
        problem = suite.problem(operator)
        unit = Unit(Candidate(path, str(path), str(path), operator, source), problem, problem.shape(shape), dsl)
        return UnitJudge(setup, unit).run()

    return run


def forward(body, init=""):
    body = body.replace("\n", "\n        ")
    return f"import time\n{TORCH}\n{init}\nclass Model(Honest):\n    calls = 0\n    def forward(self, x, weight):\n" + (
        f"        self.calls += 1\n        {body}\n"
    )


RIGHT = "return super().forward(x, weight)"


@pytest.mark.parametrize(
    ("operator", "shape"),
    [
        ("rms_norm", "36"),
        ("silu_and_mul", "7"),
        ("fused_add_rms_norm", "5"),
        ("moe_topk_gating_softmax", "9"),
        ("block_scaled_mm", "1"),
        ("paged_attention_decode", "3"),
    ],
)
def test_triton_examples_pass_with_all_their_time_in_their_own_kernels(judge, operator, shape):
    record = judge((EXAMPLES / "triton" / f"{operator}.py").read_text(), operator, shape)
    assert record.verdict.status == "passed", record.verdict
    assert record.adoption.share == 1.0 and record.verdict.shortcut is None
    assert {a.kind for a in record.compile.artifacts} == {"cubin"}
    assert 0 < record.roofline.S <= 1
    assert abs(record.performance.slope_us - record.performance.median_us) <= max(2, 0.1 * record.performance.median_us)


def test_units_of_one_candidate_share_a_process(setup, judge):
    """The second unit finds its kernel built; what it measures is as right as in a process of its own."""
    source = (EXAMPLES / "triton" / "rms_norm.py").read_text()
    setup.reuses = True
    try:
        first, second = judge(source), judge(source, shape="9")
        process = setup._kept[1].pid
        third = judge(source, shape="32")
        assert setup._kept[1].pid == process
    finally:
        setup.reuses = False
        setup.let_go()
    for record in (first, second, third):
        assert record.verdict.status == "passed", record.verdict
        assert record.adoption.share == 1.0 and record.compile.artifacts
        assert record.readiness is None or record.readiness["graph_capturable"]
    assert third.phases["spawn"] < first.phases["spawn"] / 2
    alone = judge(source, shape="32")
    assert abs(third.performance.median_us - alone.performance.median_us) <= max(1, 0.1 * alone.performance.median_us)


def test_a_fallback_is_correct_with_adoption_zero_and_a_shortcut(judge):
    record = judge(forward(RIGHT))
    assert record.verdict.status == "passed" and record.adoption.share == 0 and record.verdict.shortcut == "torch"
    assert record.compile.artifacts == []


def test_a_forward_that_waits_for_the_device_is_honest_and_host_bound(judge):
    record = judge(forward("out = super().forward(x, weight)\ntorch.cuda.synchronize()\nreturn out"))
    assert record.verdict.status == "passed", record.verdict


def test_an_illegal_access_is_that_units_verdict_and_the_next_unit_runs(judge):
    kernel = (
        "import triton\nimport triton.language as tl\n"
        "@triton.jit\ndef crash(p):\n    tl.store(p + (1 << 40) + tl.arange(0, 32), 1.0)\n"
    )
    record = judge(forward("if self.calls == 2: crash[(1,)](x)\n" + RIGHT, kernel))
    assert (record.verdict.stage, record.verdict.category) == ("runtime", "exception")
    assert judge(forward(RIGHT)).verdict.status == "passed"


@pytest.mark.parametrize(
    ("body", "category"),
    [
        ("torch.cuda.Event.elapsed_time = lambda *a: 0.0005\n" + RIGHT, "integrity"),
        (
            "out = torch.empty_like(x)\nside = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\n"
            "with torch.cuda.stream(side):\n    torch.cuda._sleep(2000000)\n    out.copy_(super().forward(x, weight))\n"
            "if self.calls < 6: torch.cuda.synchronize()\nreturn out",
            "integrity",
        ),
        (
            "if self.calls < 14 or not hasattr(self, 'kept'): self.kept = super().forward(x, weight)\n"
            "return self.kept.clone()",
            "integrity",
        ),
        ("out = super().forward(x, weight)\nout[-3:] = 0\nreturn out", "numeric_mismatch"),
        ("x.mul_(1)\nx[0, 0] += 1\n" + RIGHT, "interface"),
        ("return super().forward(x, weight).cpu()", "interface"),
        ("if self.calls == 2: torch.cuda._sleep(30000000000)\n" + RIGHT, "timeout"),
    ],
)
def test_what_cheats_or_breaks_is_named(judge, body, category):
    record = judge(forward(body))
    assert (record.verdict.status, record.verdict.category) == ("failed", category), record.verdict


def test_the_device_is_left_to_other_judges_while_a_kernel_is_compiled(setup, tmp_path):
    """`Turns` writes down what is taken: the first case of a kernel that is not built yet takes the device twice."""
    source = (EXAMPLES / "triton" / "rms_norm.py").read_text()
    path = tmp_path / "rms_norm.py"
    path.write_text(source)
    problem = load_suite().problem("rms_norm")
    fresh = Candidate(path, str(path), str(path), "rms_norm", source + f"\n# {tmp_path}\n")
    taken = []
    for _ in range(2):
        turns = Turns()
        record = UnitJudge(replace(setup, lease=turns), Unit(fresh, problem, problem.shape("36"), "triton")).run()
        assert record.verdict.status == "passed", record.verdict
        assert turns.taken.count("exclusive") == 1
        taken.append(turns.taken.index("exclusive"))
    assert taken[0] > taken[1] >= len(record.correctness.cases)
