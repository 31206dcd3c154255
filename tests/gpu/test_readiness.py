"""Readiness probes on a CUDA device: each finds the kernel that lacks the property, and an honest one has them all."""

from __future__ import annotations

import pytest
import torch

from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_suite
from tests.gpu.test_judge import EXAMPLES, forward

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def setup():
    from atrex.evaluate.setup import prepare

    made = prepare("cuda:0", Seeds(), 1, Budgets(compile=60, execution=3, performance=5), 20)
    yield made
    made.close()


@pytest.fixture
def readiness(setup, tmp_path):
    """readiness(source) -> (record, what readiness found)."""

    def run(source, operator="rms_norm", shape="36"):
        path = tmp_path / f"{operator}.py"
        path.write_text(source)
        problem = load_suite().problem(operator)
        unit = Unit(Candidate(path, str(path), str(path), operator, source), problem, problem.shape(shape), "triton")
        record = UnitJudge(setup, unit, readiness=True).run()
        assert record.verdict.status == "passed", record.verdict
        return record.readiness

    return run


@pytest.mark.parametrize(
    ("operator", "shape"), [("rms_norm", "36"), ("fused_add_rms_norm", "5"), ("paged_attention_decode", "3")]
)
def test_an_honest_triton_kernel_has_every_property(readiness, operator, shape):
    found = readiness((EXAMPLES / "triton" / f"{operator}.py").read_text(), operator, shape)
    assert found["why"] == {}
    wanted = ("bitwise_repeatable", "no_host_sync", "own_stream", "concurrent", "graph_capturable")
    assert {name: found[name] for name in wanted} == dict.fromkeys(wanted, True)
    assert found["other_device"] in (True, None)


def test_workspace_is_what_a_forward_allocates_beside_its_outputs(readiness):
    plain = readiness((EXAMPLES / "triton" / "rms_norm.py").read_text())["workspace_bytes"]
    more = "extra = torch.empty(64 << 20, dtype=torch.uint8, device=x.device)\nreturn super().forward(x, weight)"
    held = readiness(forward(more))["workspace_bytes"]
    assert plain == 0
    assert held >= 64 << 20


def test_a_forward_that_waits_is_seen_and_cannot_be_captured(readiness):
    found = readiness(forward("out = super().forward(x, weight)\ntorch.cuda.synchronize()\nreturn out"))
    assert found["no_host_sync"] is False and found["graph_capturable"] is False
    assert "graph_capturable" in found["why"]


def test_work_on_the_default_stream_is_seen(readiness):
    default = (
        "here = torch.cuda.current_stream()\n"
        "with torch.cuda.stream(torch.cuda.default_stream()):\n    out = super().forward(x, weight)\n"
        "if not torch.cuda.is_current_stream_capturing(): here.wait_stream(torch.cuda.default_stream())\nreturn out"
    )
    assert readiness(forward(default))["own_stream"] is False


def test_a_workspace_shared_by_two_calls_is_seen(readiness):
    shared = (
        "if getattr(self, 'room', x.new_empty(0)).shape != x.shape: self.room = torch.empty(x.shape, device=x.device)\n"
        "self.room.copy_(x)\n"
        "torch.cuda._sleep(3000000)\n"
        "return super().forward(self.room.to(x.dtype), weight)"
    )
    found = readiness(forward(shared))
    assert found["own_stream"] is True and found["concurrent"] is False


def test_a_kernel_whose_last_bits_vary_is_not_repeatable(readiness):
    varying = (
        "factor = 1 + 0.003 * torch.rand(x.shape[0], 1, device=x.device)\n"
        "return (super().forward(x, weight).float() * factor).to(x.dtype)"
    )
    assert readiness(forward(varying))["bitwise_repeatable"] is False
