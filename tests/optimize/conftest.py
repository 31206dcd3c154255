from __future__ import annotations

import shutil

import pytest

from atrex.optimize.machine import Supervisor
from atrex.optimize.model import Plan, Roofline, Settings, ShapeRoofline
from atrex.optimize.store import Campaign
from tests.optimize.lab import BASE_US, SayingLab

PLAN = Plan(
    bottleneck="memory bandwidth", category="vectorization", change="wider loads of both operands",
    cards=["coalesced-access"], gain=1.2,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _git():
    if shutil.which("git") is None:
        pytest.skip("needs git")


@pytest.fixture
def begin(tmp_path):
    """Makes campaigns: (supervisor, campaign)."""
    made = []

    def make(name="campaign", lab=None, **settings):
        fields = {
            "operator": "rms_norm", "shapes": list(BASE_US), "dsl": "cpp", "device": "cpu", "chip": "cpu",
            "suite": None, "suite_hash": "x", "agent": None, "created": "now",
        }  # fmt: skip
        bound = ShapeRoofline(flops=1, bytes_moved=1, intensity=1.0, bound="memory", roofline_us=1.0)
        roofline = Roofline(
            chip="cpu", ceilings={"memory.bandwidth": 1.0}, cards={"memory.bandwidth": "measured"},
            shapes=dict.fromkeys(BASE_US, bound),
        )  # fmt: skip
        campaign = Campaign.create(tmp_path / name, Settings(**fields | settings), roofline)
        made.append(campaign)
        return Supervisor(campaign, lab or SayingLab()), campaign

    return make
