"""All operators with a scripted agent, ended by Ctrl-C and by SIGKILL while problems are under way, and resumed."""

from __future__ import annotations

import pytest
from benchmarks.generate_dry_run import SPELL, agent, interrupted, lost

from atrex.hardware.sandbox import landlock_abi


@pytest.mark.slow
@pytest.mark.skipif(landlock_abi() is None, reason="needs Landlock")
def test_a_run_that_is_interrupted_and_resumed_loses_nothing(tmp_path):
    out = tmp_path / "out"
    parts = interrupted(out, agent(tmp_path / "agent", SPELL), jobs=2)
    assert [part["exit"] for part in parts] == [2, -9, 0]
    assert all(part["earlier_records_unchanged"] for part in parts)
    assert parts[0]["records_after"] < parts[1]["records_after"] < parts[2]["records_after"] == 30
    assert lost(out) == []
