"""Where an operator's kernel for an H200 is: in kernels/h200 while it is worked on, else in the wiki."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def kernel_file(operator: str, root: Path = ROOT) -> Path:
    """The file; where there is none, the one that kernels/h200 would have."""
    draft = root / "kernels" / "h200" / f"{operator}.py"
    if draft.exists():
        return draft
    return next(iter(sorted((root / "src/atrex/wiki/kernels" / operator).glob("*_h200.py"))), draft)
