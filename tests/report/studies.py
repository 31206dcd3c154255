"""Runs and generations made up for tests of `atrex report`."""

from __future__ import annotations

from pathlib import Path

from synthetic import write_run

from atrex.agents.events import Usage
from atrex.generate.records import ABOUT, RECORDS, About, Generated
from atrex.report.site.entries import Entries
from atrex.report.site.page import Pages, Site
from atrex.report.site.runs import TITLE, runs_navigation, runs_pages
from atrex.report.study.document import Study

CHANGED = "1" * 64
SAME = "0" * 64  # the hash that synthetic units carry


def about(agent="claude", model="m1", **fields) -> About:
    said = dict(
        agent=agent, model=model, dsl="triton", arch="sm_90a", device="none", chip="H200", policy="default",
        prompt_sha256="a" * 64, suite_version="0.1", suite_hash="suite", samples=1, operators=[], budget={},
        created="2026-01-01", atrex="0.1.0",
    )  # fmt: skip
    return About(**{**said, **fields})


def generated(operator: str, sample: int = 0, output: int | None = 1000, sha=SAME, **fields) -> Generated:
    said = dict(
        operator=operator, sample=sample, agent="claude", model="m1", models=["m1-2026"], dsl="triton",
        prompt_sha256="a" * 64, policy="default", tools=None, confinement=None,
        usage=None if output is None else Usage(input=10, output=output), cost_usd=0.5, seconds=1.0, turns=1,
        tool_calls=1, attempts=1, refused_hosts=[], ended="done", reason=None, candidate_sha256=sha,
    )  # fmt: skip
    return Generated(**{**said, **fields})


def write_generation(folder: Path, made: list[Generated], what: About | None = None) -> Path:
    """What `atrex generate` leaves, without the candidates themselves."""
    folder.mkdir(parents=True)
    (folder / ABOUT).write_text((what or about()).model_dump_json())
    (folder / RECORDS).write_text("".join(g.model_dump_json() + "\n" for g in made))
    return folder


def judged(path: Path, folders: dict[str, list], **run) -> Path:
    """A run over candidate folders: folder -> units."""
    records = [
        r.model_copy(update={"candidate": f"{folder}/{r.operator}.py"}) for folder, rs in folders.items() for r in rs
    ]
    entries = [{"path": folder} for folder in folders]
    planned = [[r.operator, r.shape] for r in records]
    return write_run(path, records, candidates=entries, planned=planned, suite_hash="suite", **run)


def write_pages(study: Study, folder: Path, suite: Path | None = None) -> Site:
    """The pages of runs alone, without those of chips and cards."""
    entries = Entries(study, suite)
    site = Site(folder, Pages(TITLE, runs_navigation(entries), study.notes))
    runs_pages(site, entries)
    site.close()
    return site


def suite_document(weights: dict[str, float], shapes: dict[str, int]) -> dict:
    """The entry of run.json that makes a run be scored over a small suite of its own."""
    return {"suite": "mine", "scored_over": {"weights": weights, "shapes": shapes}}
