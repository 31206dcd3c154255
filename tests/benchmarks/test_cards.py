"""Kernels with a closed run become cards that the wiki takes; others stay where they are, with the reason."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path

import pytest

from atrex.errors import UserError
from atrex.wiki import kernels
from atrex.wiki.load import load_wiki, read_card
from benchmarks import cards

ROOT = Path(__file__).parents[2]
RUN = "results/h200-triton-examples"
DRAFT = """---
title: "rms_norm in Triton: a row a program, loaded once"
words: [row reduction]
relations:
  implements: [playbook-rms-norm]
---

## What it does

Each program loads its row once, sums squares in fp32, and writes the scaled row [1].

## Limits

One row a program: {limits}
"""


@pytest.fixture
def project(tmp_path):
    """A project whose kernels/h200 holds the judged Triton example of rms_norm."""
    for folder in ("kernels/h200", "kernels/cards", cards.CARDS, cards.KERNELS, RUN):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "examples/candidates/triton/rms_norm.py", tmp_path / "kernels/h200/rms_norm.py")
    (tmp_path / "kernels/cards/rms_norm.md").write_text(DRAFT.format(limits="few rows leave most of the chip idle."))
    for name in ("run.json", "units.jsonl"):
        shutil.copy(ROOT / RUN / name, tmp_path / RUN / name)
    return tmp_path


def run(project, monkeypatch, *more):
    monkeypatch.setattr(kernels, "KERNELS", project / cards.KERNELS)
    monkeypatch.setattr(sys, "argv", ["cards.py", RUN, "--root", str(project), *more])
    cards.main()


def test_a_card_says_what_its_record_says(project, monkeypatch, capsys):
    run(project, monkeypatch, "--vanilla", RUN)
    assert "left: silu_and_mul" in capsys.readouterr().out  # judged, and not a file of kernels/h200
    kernel = project / cards.KERNELS / "rms_norm" / "triton_h200.py"
    assert kernel.read_bytes() == (ROOT / "examples/candidates/triton/rms_norm.py").read_bytes()
    assert not (project / "kernels/h200/rms_norm.py").exists()
    path = project / cards.CARDS / "kernel-rms-norm-h200.md"
    assert "All 56 published shapes and the" in path.read_text()
    card = read_card(path)
    assert abs(card.verified[0].S - _score()) < 1e-3
    assert (list(card.dsl), card.kernel) == (["triton"], "rms_norm/triton_h200.py")
    assert [message for _, message in kernels.check_kernel(card, load_wiki(), project)] == []


def _score():
    rows = [json.loads(line) for line in (ROOT / RUN / "units.jsonl").read_text().splitlines()]
    mine = [r for r in rows if r["operator"] == "rms_norm" and r["origin"] == "published" and not r["held_out"]]
    return statistics.median(r["roofline"]["S"] for r in mine)


@pytest.mark.parametrize("change", ["edited", "failed", "no draft", "no held-out", "another DSL did the work"])
def test_what_is_no_reference_kernel_stays(project, monkeypatch, capsys, change):
    rows = [json.loads(line) for line in (project / RUN / "units.jsonl").read_text().splitlines()]
    mine = [row for row in rows if row["operator"] == "rms_norm"]
    reason = {
        "edited": "not the file that was judged", "failed": f"did not pass shapes {mine[0]['shape']}",
        "no draft": "no draft of its card", "no held-out": "no held-out shape was judged",
        "another DSL did the work": "half the work or less",
    }[change]  # fmt: skip
    if change == "edited":
        with (project / "kernels/h200/rms_norm.py").open("a") as file:
            file.write("# changed\n")
    elif change == "failed":
        mine[0]["verdict"] |= {"status": "failed", "stage": "runtime", "category": "timeout", "reason": "slow"}
    elif change == "no draft":
        (project / "kernels/cards/rms_norm.md").unlink()
    elif change == "no held-out":
        mine = [row for row in mine if not row["held_out"]]
    else:
        next(row for row in mine if row["performance"])["adoption"]["share"] = 0.4
    (project / RUN / "units.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mine))
    run(project, monkeypatch)
    out = capsys.readouterr().out
    assert reason in out and "0 kernels became cards" in out
    assert (project / "kernels/h200/rms_norm.py").exists() and not list((project / cards.CARDS).iterdir())


def test_a_draft_with_other_sections_is_refused(project, monkeypatch):
    path = project / "kernels/cards/rms_norm.md"
    path.write_text(path.read_text().replace("## Limits", "## Caveats"))
    with pytest.raises(UserError, match="draft of rms_norm: sections What it does, Caveats"):
        run(project, monkeypatch)


def test_a_run_that_is_not_closed_is_refused(project, monkeypatch):
    about = json.loads((project / RUN / "run.json").read_text())
    (project / RUN / "run.json").write_text(json.dumps(about | {"closed": None}))
    with pytest.raises(UserError, match="expected a finished run"):
        run(project, monkeypatch)
