"""Reference kernels: what a card says of one is held against the records.

`measured`: a closed run of the judge passed every shape of the operator, held-out ones included, on the chip, with a
file of this content, and the target DSL did most of the device's work. `compiled`: a record of the compile gate says so
of every shape for the target, and a twin of the algorithm runs elsewhere. Anything else is refused.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atrex
from atrex.hardware.chip import chip_ids, load_chip
from atrex.scoring.operators import DOMINANT_SHARE
from atrex.wiki.load import Wiki
from atrex.wiki.schema import Card, Kind, Verification
from atrex.wiki.vocabulary import vocabulary

SCORE_ROUNDING = 0.0006  # S has three decimals
KERNELS = Path(__file__).parent / "kernels"


def kernel_file(card: Card, root: Path) -> Path:
    """The file of a kernel card: below wiki/kernels, or the project's example."""
    assert card.kernel is not None
    return root / card.kernel if card.kernel.startswith("examples/") else KERNELS / card.kernel


def kernel_code(card: Card) -> str | None:
    """The text of a kernel card's file; None where it is gone. The examples ship inside the package."""
    file = kernel_file(card, Path(atrex.__file__).resolve().parent)
    return file.read_text() if file.is_file() else None


def unlisted_kernels(wiki: Wiki) -> Iterator[tuple[str, str]]:
    """Files under wiki/kernels that no card speaks of."""
    known = {card.kernel for card in wiki}
    for path in sorted(KERNELS.glob("*/*.py")):
        name = path.relative_to(KERNELS).as_posix()
        if name not in known:
            yield name, "no card: a kernel without a record is refused"


def check_kernel(card: Card, wiki: Wiki, root: Path) -> Iterator[tuple[str, str]]:
    """What keeps a kernel card from being true."""
    file = kernel_file(card, root)
    if not file.is_file():
        yield "kernel", f"{card.kernel}: no such file"
        return
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    if len(card.operators) != 1 or card.operators[0] not in vocabulary().operators:
        yield "operators", "a kernel is of one operator of the suite"
        return
    if len(card.dsl) != 1 or card.dsl == ("any",):
        yield "dsl", "a kernel is in one DSL"
        return
    archs = set()
    for number, verification in enumerate(card.verified, 1):
        field = f"verified.{number}"
        if verification.sha256 != sha256:
            yield field, f"sha256 is not that of {card.kernel}, {sha256}"
            continue
        if not (root / verification.record).exists():
            continue  # said elsewhere
        arch = _arch(verification)
        archs.add(arch)
        looks = _measured if verification.level == "measured" else _compiled
        for message in looks(card, verification, root):
            yield field, message
        if verification.level == "compiled":
            for message in _twin(verification, wiki, root):
                yield field, message
    if archs and archs != set(card.arch):
        yield "arch", f"{', '.join(card.arch)}; the records are of {', '.join(sorted(archs))}"


def _arch(verification: Verification) -> str:
    if verification.chip in chip_ids():
        return load_chip(verification.chip).arch
    return verification.chip.removesuffix("a") if verification.chip.startswith("sm_") else verification.chip


def _measured(card: Card, verification: Verification, root: Path) -> Iterator[str]:
    folder = root / verification.record
    try:
        about = json.loads((folder / "run.json").read_text())
        units = [json.loads(line) for line in (folder / "units.jsonl").read_text().splitlines()]
    except (OSError, json.JSONDecodeError):
        yield f"{verification.record}: no run directory with run.json and units.jsonl"
        return
    operator = card.operators[0]
    mine = [unit for unit in units if unit["candidate_sha256"] == verification.sha256 and unit["operator"] == operator]
    if not about.get("closed"):
        yield f"{verification.record}: the run was not finished"
    if not mine:
        yield f"{verification.record}: judged no file of this content as {operator}"
        return
    by_shape = {unit["shape"]: unit for unit in mine}
    missing = [shape for shape in _shapes(operator) if shape not in by_shape]
    if missing:
        yield f"{verification.record}: without shapes {', '.join(missing[:8])}"
    failed = [shape for shape, unit in by_shape.items() if unit["verdict"]["status"] != "passed"]
    if failed:
        yield f"{verification.record}: did not pass shapes {', '.join(failed[:8])}"
    chips = {unit["chip"] for unit in mine}
    if chips != {verification.chip}:
        yield f"{verification.record}: judged on {', '.join(sorted(chips))}, not on {verification.chip}"
    if {unit["dsl"] for unit in mine} != set(card.dsl):
        yield f"{verification.record}: judged as {', '.join(sorted({unit['dsl'] for unit in mine}))}"
    if any(_share(unit) <= DOMINANT_SHARE for unit in mine if not unit["held_out"] and unit["performance"]):
        yield f"{verification.record}: {card.dsl[0]} does not do most of the device's work on every shape"

    yield from _score(verification, mine)


def _score(verification: Verification, units: list[dict[str, Any]]) -> Iterator[str]:
    scores = [u["roofline"]["S"] for u in units if u.get("origin") == "published" and not u["held_out"]]
    if not scores or None in scores:
        return  # said before
    score = statistics.median(scores)
    if verification.S is None or abs(verification.S - score) > SCORE_ROUNDING:
        yield f"S: {verification.S}; {verification.record} has {score:.3f}"


def _share(unit: dict[str, Any]) -> float:
    return (unit.get("adoption") or {}).get("share", 0.0)


def _compiled(card: Card, verification: Verification, root: Path) -> Iterator[str]:
    try:
        rows = json.loads((root / verification.record).read_text())["candidates"]
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        yield f"{verification.record}: no record of atrex compile"
        return
    mine = [
        row for row in rows
        if row.get("sha256") == verification.sha256 and row["target"] == verification.chip
        and row["operator"] == card.operators[0] and row["dsl"] == card.dsl[0]
    ]  # fmt: skip
    if not mine:
        yield f"{verification.record}: has no file of this content for {verification.chip}"
        return
    shapes, expected = mine[0]["shapes"], len(_shapes(card.operators[0]))
    if shapes["compiled"] != expected or shapes["failed"] or shapes["undetermined"]:
        yield f"{verification.record}: {shapes['compiled']} of {expected} shapes compiled for {verification.chip}"


def _twin(verification: Verification, wiki: Wiki, root: Path) -> Iterator[str]:
    twin = verification.twin
    if twin is None:
        yield "twin: a compiled kernel names a measured kernel of the same algorithm, or a test that runs it"
    elif twin in wiki.cards:
        other = wiki.cards[twin]
        if other.kind != Kind.KERNEL or not any(one.level == "measured" for one in other.verified):
            yield f"twin: {twin} is no kernel that was measured"
    elif not (twin.startswith("tests/") and ".." not in twin and (root / twin).is_file()):
        yield f"twin: {twin!r} is neither a card nor a test"


def _shapes(operator: str) -> list[str]:
    """The ids of the shapes that the shipped suite lists for an operator."""
    import atrex.suite

    return list(json.loads((Path(atrex.suite.__file__).parent / operator / "shapes.json").read_text()))
