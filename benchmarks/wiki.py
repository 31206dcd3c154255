"""The wiki in figures: cards, sources, how well and how fast search answers, what advise says of the measured kernels.

    python benchmarks/wiki.py --out results/wiki.json

Search is timed in this process over the golden questions, after the index was built; the machine's load is not looked
at, so run it on an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def cards() -> dict:
    """Counts of cards and sources. A source can be followed if it is an address or a file of the project."""
    from atrex.wiki.check import check_cards, checkout

    root = checkout()
    wiki, findings = check_cards(root=root)
    sources = [source.where for card in wiki for source in card.sources]
    followable = [w for w in sources if w.startswith(("http://", "https://")) or (root / w.partition("#")[0]).exists()]
    kernels = [card for card in wiki if card.kind == "kernel"]
    return {
        "cards": len(wiki.cards),
        "by_kind": dict(sorted(Counter(card.kind.value for card in wiki).items())),
        "by_arch": dict(sorted(Counter(arch for card in wiki for arch in card.arch).items())),
        "by_dsl": dict(sorted(Counter(dsl for card in wiki for dsl in card.dsl).items())),
        "sources": len(sources),
        "followable_share": len(followable) / len(sources),
        "verified": sum(bool(card.verified) for card in wiki),
        "kernels": dict(Counter(max(one.level for one in card.verified) for card in kernels)),
        "relations": sum(len(card.edges) for card in wiki),
        "findings": sum(not finding.note for finding in findings),
    }


def questions() -> dict:
    """recall@5 and nDCG@8 of both halves, and the seconds that one question takes."""
    from tests.wiki.test_golden import GOLDEN, answers, figures

    from atrex.wiki.index import index_folder
    from atrex.wiki.search import Filters, search

    start = time.perf_counter()
    search("build the index")
    built = time.perf_counter() - start
    rows = answers()
    halves = {
        name: {"questions": len(part)} | figures(part)
        for name, held_out in (("open", False), ("held_out", True))
        if (part := [row for row in rows if row[0]["held_out"] == held_out])
    }
    seconds = []
    for entry in GOLDEN["questions"] * 3:
        start = time.perf_counter()
        search(entry["question"], Filters(arch=entry["arch"], dsl=entry["dsl"]))
        seconds.append(time.perf_counter() - start)
    seconds.sort()
    return halves | {
        "latency_ms": {
            "median": statistics.median(seconds) * 1e3, "p95": seconds[int(0.95 * len(seconds))] * 1e3,
            "max": seconds[-1] * 1e3, "n": len(seconds),
        },
        "index_build_ms": built * 1e3,
        "index_bytes": sum(path.stat().st_size for path in index_folder().glob("cards-*.sqlite")),
    }  # fmt: skip


def fixtures() -> list[dict]:
    """What advise says of each measured kernel."""
    from atrex.profiling.evidence import read_evidence
    from atrex.wiki.advise import advise

    rows = []
    for path in sorted((ROOT / "tests" / "wiki" / "fixtures").glob("*.json")):
        evidence = read_evidence(path)
        advice, values = advise(evidence), evidence.figures()
        rows.append({
            "kernel": path.stem, "device": evidence.device, "us": values.get("atrex.duration_us"),
            "roofline_share": values.get("atrex.roofline_share"), "healthy": advice.healthy,
            "symptoms": [{"id": s.id, "recoverable_us": s.recoverable_us, "cards": s.cards} for s in advice.symptoms],
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ATREX_CACHE_DIR"] = cache
        record = {
            "what": "the wiki in figures",
            "command": " ".join(["python", "benchmarks/wiki.py", *sys.argv[1:]]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "cards": cards(),
            "search": questions(),
            "fixtures": fixtures(),
        }
    print(json.dumps(record, indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
