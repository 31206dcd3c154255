"""One judge for all attacks on the CPU."""

from __future__ import annotations

import pytest

from atrex.attacks.harness.table import Table


@pytest.fixture(scope="session")
def table():
    with Table("cpu") as made:
        yield made
