"""Kernels that the judge has passed on a GPU become reference kernels of the wiki, each with its card.

    python benchmarks/cards.py results/h200-kernels --vanilla results/h200-vanilla

The run is a closed one under results/ that judged files of kernels/h200. Of every operator that passed on all its
shapes and the held-out ones, most of the device time in its DSL, the judged file moves to
src/atrex/wiki/kernels/OPERATOR/DSL_h200.py, and its card is put together: title, words, relations, `What it does` and
`Limits` from the draft kernels/cards/OPERATOR.md; sources, `verified` and `How it was verified` from the record. What
does not become one is named with the reason. `atrex wiki check` looks at the outcome.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

import yaml

from atrex.errors import UserError
from atrex.scoring.records import Status, UnitRecord
from atrex.scoring.runs import read_run

ROOT = Path(__file__).resolve().parents[1]
CARDS, KERNELS = Path("src/atrex/wiki/cards/kernel"), Path("src/atrex/wiki/kernels")
SECTIONS = ["What it does", "Limits"]
DOMINANT_SHARE = 0.5
CHIP = "h200"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a closed run under results/")
    parser.add_argument("--vanilla", type=Path, help="a run of the first versions on the same chip")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args()
    root, run = options.root, options.run
    about, records = read_run(root / run)
    if not about.get("closed"):
        raise UserError(f"{run / 'run.json'}: closed: not set; expected a finished run")
    first = _scores(read_run(root / options.vanilla)[1]) if options.vanilla else {}
    made = 0
    for operator in sorted({record.operator for record in records}):
        mine = [record for record in records if record.operator == operator]
        source, draft = root / "kernels" / CHIP / f"{operator}.py", root / "kernels" / "cards" / f"{operator}.md"
        why = unfit(mine, source, draft)
        if why:
            print(f"left: {operator}: {why}")
            continue
        target = KERNELS / operator / f"{mine[0].dsl}_{CHIP}.py"
        card = f"kernel-{operator.replace('_', '-')}-{CHIP}"
        versions = f"driver {about['versions'].get('driver', 'unknown')}, torch {about['versions']['torch']}"
        vanilla = (options.vanilla, first[operator]) if operator in first else None
        text = compose(card, operator, draft.read_text(), mine, target, run, versions, about["closed"][:10], vanilla)
        (root / target).parent.mkdir(exist_ok=True)
        source.rename(root / target)
        (root / CARDS / f"{card}.md").write_text(text)
        made += 1
    print(f"{made} kernels became cards")


def unfit(records: list[UnitRecord], source: Path, draft: Path) -> str | None:
    """Why a kernel is no reference kernel, in a few words; None for one that is."""
    if not source.exists() or hashlib.sha256(source.read_bytes()).hexdigest() != records[0].candidate_sha256:
        return f"{source} is not the file that was judged"
    failed = [record.shape for record in records if record.verdict.status is not Status.PASSED]
    if failed:
        return f"did not pass shapes {', '.join(failed[:8])}"
    if not any(record.held_out for record in records):
        return "no held-out shape was judged"
    low = [r.shape for r in records if r.performance and r.adoption and r.adoption.share <= DOMINANT_SHARE]
    if low:
        return f"its DSL does half the work or less on shapes {', '.join(low[:8])}"
    return None if draft.exists() else f"{draft}: no draft of its card"


def compose(
    card: str, operator: str, draft: str, records: list[UnitRecord], kernel: Path, run: Path, versions: str, date: str,
    vanilla: tuple[Path, float] | None,
) -> str:  # fmt: skip
    """The card. Raises UserError for a draft without front matter, or with other sections than `SECTIONS`."""
    try:
        _, front, body = draft.split("---\n", 2)
        fields = yaml.safe_load(front)
        headings, texts = zip(*(part.split("\n", 1) for part in body.split("\n## ")[1:]), strict=True)
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"draft of {operator}: expected front matter and sections: {error}") from None
    if list(headings) != SECTIONS:
        raise UserError(f"draft of {operator}: sections {', '.join(headings)}: expected {', '.join(SECTIONS)}")
    published = [r for r in records if not r.held_out and r.origin == "published"]
    scores = [r.roofline.S for r in published]
    today = datetime.date.fromisoformat(date)
    sources = [
        {"title": "The kernel", "where": str(kernel), "date": today},
        {"title": "Judge's record on an H200", "where": str(run / "units.jsonl"), "date": today},
    ]
    others = len(records) - len(published)
    seen = (
        f"All {len(published)} published shapes and the {others} held-out ones passed on an H200 ({versions}); "
        f"S {statistics.median(scores):.2f} in the median, {min(scores):.3f} to {max(scores):.3f} [2]."
    )
    if vanilla:
        where = vanilla[0] / "units.jsonl"
        sources.append({"title": "Judge's record of the first versions on an H200", "where": str(where), "date": today})
        seen += f" The first version, in plain Triton, has S {vanilla[1]:.2f} in the median [3]."
    verified = {
        "level": "measured", "record": str(run), "chip": records[0].chip, "sha256": records[0].candidate_sha256,
        "date": today, "S": round(statistics.median(scores), 3),
    }  # fmt: skip
    head = {
        "id": card, "kind": "kernel", "title": fields["title"], "vendor": "nvidia", "arch": ["sm_90"],
        "dsl": [records[0].dsl], "operators": [operator], "words": fields.get("words", []),
        "kernel": str(kernel.relative_to(KERNELS)),
        "relations": fields["relations"], "sources": sources, "verified": [verified],
    }  # fmt: skip
    does, limits = (text.strip() for text in texts)
    front = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=1000)
    return (
        f"---\n{front}---\n\n## What it does\n\n{does}\n\n"
        f"## How it was verified\n\n{seen}\n\n## Limits\n\n{limits}\n"
    )


def _scores(records: Iterable[UnitRecord]) -> dict[str, float]:
    """S_i by operator, of those that passed everywhere."""
    found: dict[str, list[float | None]] = {}
    for record in records:
        if not record.held_out and record.origin == "published":
            found.setdefault(record.operator, []).append(record.roofline.S)
    return {operator: statistics.median(scores) for operator, scores in found.items() if None not in scores}


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
