"""Every attack that runs on the CPU: its cheats and its honest twin come out as declared."""

from __future__ import annotations

import shutil

import pytest

from atrex.attacks.harness.declare import Attack, attacks

pytestmark = [pytest.mark.alone, pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")]
FORMS = [
    pytest.param(name, form, id=f"{name}-{number}", marks=[pytest.mark.slow] if form.slow else [])
    for name, attack in attacks().items()
    for number, form in enumerate(attack.forms)
    if "cpu" in form.devices
]


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_it_comes_out_as_declared(table, name, form):
    rows = table.run(name, Attack(attacks()[name].ways, form))
    assert len(rows) == len(form.cheats)
    wrong = [
        f"{row.name}: {row.fault}; cheat: {row.record.verdict}; twin: {row.twin.verdict}" for row in rows if row.fault
    ]
    assert not wrong, "\n".join(wrong)
