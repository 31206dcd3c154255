"""The best known kernel of each operator in a folder: what the cards say was measured on a chip."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atrex.errors import UserError
from atrex.evaluate.candidates import Candidate
from atrex.files import read_source
from atrex.wiki.load import Wiki, load_wiki
from atrex.wiki.schema import Kind


def best_kernels(
    folder: Path, operators: Sequence[str], chip: str, wiki: Wiki | None = None
) -> tuple[list[Candidate], list[str]]:
    """The fastest kernel of each operator in `folder` (`<operator>/<name>.py`), and the operators that have none.

    Only files that a card calls measured on `chip` count, by their content: one that was edited since is another. The
    largest S_i wins. Raises UserError where no operator is left.
    """
    if not folder.is_dir():
        raise UserError(f"--best {folder}: expected a folder of <operator>/<name>.py files")
    known = _measured(wiki or load_wiki(), chip)
    found, without = [], []
    for operator in operators:
        files = sorted((folder / operator).glob("*.py"))
        every = [Candidate(file, str(file), str(folder), operator, read_source(file)) for file in files]
        scored = [candidate for candidate in every if candidate.sha256 in known]
        if scored:
            found.append(max(scored, key=lambda candidate: known[candidate.sha256]))
        elif files:
            without.append(operator)
    if not found:
        raise UserError(f"--best {folder}: no card says of a kernel there that it was measured on {chip}")
    return found, without


def _measured(wiki: Wiki, chip: str) -> dict[str, float]:
    """S_i on `chip` by the SHA-256 of the file."""
    return {
        v.sha256: v.S
        for card in wiki
        if card.kind == Kind.KERNEL
        for v in card.verified
        if v.level == "measured" and v.chip == chip and v.sha256 is not None and v.S is not None
    }
