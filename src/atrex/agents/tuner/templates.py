"""Kernels with knobs to start from: `templates/DSL/OPERATOR.py`, each a valid candidate as it stands."""

from __future__ import annotations

from pathlib import Path

from atrex.errors import UserError

_FOLDER = Path(__file__).with_name("templates")


def known() -> dict[str, list[str]]:
    """Operators by DSL."""
    return {folder.name: sorted(p.stem for p in folder.glob("*.py")) for folder in sorted(_FOLDER.iterdir())}


def path(dsl: str, operator: str) -> Path:
    """The file of a template. Raises UserError where there is none."""
    found = _FOLDER / dsl / f"{operator}.py"
    if not found.is_file():
        have = "; ".join(f"{name}: {', '.join(each)}" for name, each in known().items())
        raise UserError(f"--agent tuner: no template of {operator} in {dsl}; there are {have}; or give a file of yours")
    return found
