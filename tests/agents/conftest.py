"""A jail, and a short way to run a script in it."""

from __future__ import annotations

import os
import sys
import time

import pytest

from atrex.agents.jail import Jail, Terms
from atrex.evaluate.confine.limits import Limits
from atrex.hardware.sandbox import CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWUSER, can_unshare, landlock_abi

SMALL = Limits(memory=1 << 30, disk=64 << 20, processes=64)


@pytest.fixture(autouse=True)
def _confinable():
    if landlock_abi() is None or can_unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWPID):
        pytest.skip("needs Landlock and user namespaces")


@pytest.fixture
def inside(tmp_path):
    """Runs Python source in a jail: (exit status, printed lines, the jail)."""

    def run(source: str, seconds: float = 30, env: dict | None = None, **terms):
        root = tmp_path / "jail"
        with Jail(root, Terms(**{"limits": SMALL} | terms)) as jail:
            (jail.workspace / "script.py").write_text(source)
            jail.start([sys.executable, "script.py"], env)
            lines = [line for _, line in jail.lines(time.monotonic() + seconds)]
            return jail.wait(), lines, jail

    return run


@pytest.fixture
def here():
    return os.getpid()
