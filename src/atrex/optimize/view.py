"""What an agent sees of a campaign: copies, of what is not masked, and nothing that the supervisor measures with."""

from __future__ import annotations

import json
import shutil
from importlib.resources import files
from pathlib import Path

from atrex.dsls.base import get
from atrex.generate.prompt import OUTPUT, primer, render
from atrex.optimize.machine import Position
from atrex.optimize.model import CATEGORIES, Plan, Record
from atrex.optimize.store import Campaign
from atrex.problems.load import load_suite
from atrex.problems.model import Problem

KERNEL, PLAN, SIBLINGS = "kernel.py", "plan.json", "siblings.json"


def problem_of(campaign: Campaign) -> Problem:
    settings = campaign.settings
    return load_suite(settings.suite_path).problem(settings.operator)


def lay_out(campaign: Campaign, at: Position, folder: Path) -> None:
    """Fill a folder with what belongs to a step: the incumbent, the roofline, evidence, opened cards, visible memory.

    Shapes are those of the campaign. Whatever was in the folder is removed.
    """
    from atrex.generate.workspace import lay_out as problem_files

    problem = problem_of(campaign)
    chosen = {shape: problem.shape(shape) for shape in campaign.settings.shapes}
    staged = folder.with_name(f".{folder.name}.new")
    problem_files(staged, problem, "See TASK.md.", chosen)
    shutil.rmtree(folder, ignore_errors=True)
    (staged / "workspace").rename(folder)
    shutil.rmtree(staged)
    (folder / "PROMPT.md").unlink()
    (folder / "TASK.md").write_text(task(campaign, at))
    _write(folder / "roofline.json", campaign.roofline.model_dump(mode="json"))
    if campaign.incumbent is not None:
        shutil.copyfile(campaign.kernel, folder / KERNEL)
    first = campaign.first_of(at.number)
    where = {"step": at.step, "iteration": at.number, "session": campaign.session}
    _write(folder / "position.json", where)
    memory = [told(record) for record in campaign.visible]
    _write(folder / "memory.json", memory)
    if campaign.has(first, "evidence") and first:
        _write(folder / "evidence.json", campaign.get(first, "evidence").model_dump(mode="json"))
    if campaign.has(first, "knowledge") and first:
        _cards(campaign.get(first, "knowledge").cards, folder / "cards")
    if others := siblings(campaign, at):
        _write(folder / SIBLINGS, {number: plan.model_dump(mode="json") for number, plan in others.items()})
    if campaign.has(at.number, "plan") and at.number:
        _write(folder / PLAN, campaign.get(at.number, "plan").model_dump(mode="json"))


def siblings(campaign: Campaign, at: Position) -> dict[int, Plan]:
    """The plans of the other attempts of an iteration, by number."""
    others = [number for number in campaign.attempts(campaign.first_of(at.number)) if number != at.number]
    return {number: campaign.get(number, "plan") for number in others}


def _cards(ids: list[str], folder: Path) -> None:
    from atrex.wiki.load import CARDS, card_files

    folder.mkdir()
    found = {path.stem: path for path in card_files(CARDS)}
    for card in ids:
        if card in found:
            shutil.copyfile(found[card], folder / f"{card}.md")


def told(record: Record) -> dict:
    """A record as an agent is told it: what was tried, predicted and found."""
    v = record.validation
    return {
        "iteration": record.number, "incumbent": record.incumbent, "session": record.session,
        "category": record.category, "outcome": v.outcome, "reason": v.reason,
        "change": record.plan.change if record.plan else None,
        "predicted_ratio": record.plan.gain if record.plan else None,
        "measured_ratio": v.ratio, "interval": [v.low, v.high] if v.ratio else None, "S": v.S_i,
        "median_us": v.median_us,
    }  # fmt: skip


def task(campaign: Campaign, at: Position) -> str:
    """What is wanted now, in words."""
    s = campaign.settings
    return render(
        files("atrex.optimize").joinpath("prompts", "task.md.j2").read_text(encoding="utf-8"),
        step=at.step,
        operator=s.operator,
        dsl=" or ".join(s.dsls),
        chip=s.chip,
        output=OUTPUT,
        plan=PLAN,
        siblings=SIBLINGS if at.step in ("plan", "candidate") and siblings(campaign, at) else None,
        categories=CATEGORIES,
        schema=json.dumps(Plan.model_json_schema()),
        constraints="\n\n".join(get(name).constraints for name in s.dsls),
        primer="\n\n".join(primer(name) for name in s.dsls),
    )


def _write(path: Path, data: object) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n")
