"""The campaigns of an ablation: which, in what order, one JSON line each; then their kernels again, side by side.

The file's first line says what is compared. A run that finds lines of its own goes on after them; a campaign that was
cut off is begun again.
"""

from __future__ import annotations

import fcntl
import json
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from atrex import __version__
from atrex.agents.base import Choice, make
from atrex.agents.tuner import templates
from atrex.agents.tuner.campaign import moved
from atrex.agents.tuner.knobs import Values, find, render, values
from atrex.errors import UserError
from atrex.evaluate.rundir import now
from atrex.hardware.cache import cpu_model
from atrex.hardware.chip import CPU
from atrex.optimize.ablate.lab import REPEATS, ReplicateLab, Replicates, Spent
from atrex.optimize.director import Director
from atrex.optimize.dropout import POLICIES
from atrex.optimize.machine import Supervisor
from atrex.optimize.setup import Wish, begin
from atrex.optimize.store import Campaign
from atrex.problems.load import load_suite, suite_hash

SESSION = 600.0  # seconds that a session of the tuner may take; it measures nothing and takes a fraction of one


@dataclass(frozen=True)
class Design:
    """`campaigns` of every policy, each of `budget` rounds and at most `restarts`; `again` rounds for the figures."""

    operator: str
    shapes: tuple[str, ...]
    policies: tuple[str, ...]
    campaigns: int
    budget: int
    restarts: int
    again: int
    threads: int
    seed: int

    def check(self) -> None:
        """Raises UserError for a design that compares nothing."""
        for policy in self.policies:
            if policy not in POLICIES:
                raise UserError(f"--policies {policy}: unknown policy; expected some of {', '.join(POLICIES)}")
        if len(set(self.policies)) != len(self.policies) or len(self.policies) < 2:
            raise UserError(f"--policies {','.join(self.policies)}: expected two or more, each once")

    @property
    def order(self) -> list[tuple[int, str]]:
        """Campaign after campaign, for each number the policies in an order drawn: what drifts meets all alike."""
        drawn = random.Random(self.seed)
        return [
            (number, policy)
            for number in range(self.campaigns)
            for policy in drawn.sample(self.policies, len(self.policies))
        ]


class Ablation:
    """Runs a design into a file. `told` gets lines for the terminal."""

    def __init__(self, design: Design, out: Path, told: Callable[[str], None] = print):
        design.check()
        self.design, self._out, self._told = design, out, told
        self._source = templates.path("cpp", design.operator).read_text(encoding="utf-8")
        self._problem = load_suite(None).problem(design.operator)
        for shape in design.shapes:
            self._problem.shape(shape)
        self._work = out.with_name(f"{out.name}.work")
        self._lines = self._begin()

    def run(self) -> list[dict[str, Any]]:
        """Do what is missing; all lines, the first is what was compared. Raises UserError while another run does."""
        with self._out.open("a") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self._out}: another run writes to it") from None
            if self._missing or self._measured < self.design.again:
                with Replicates(
                    self._problem, list(self.design.shapes), self._work / "kept", self.design.threads
                ) as lab:
                    self._all(lab)
            shutil.rmtree(self._work, ignore_errors=True)
        return self._lines

    def _all(self, replicates: Replicates) -> None:
        of, left = len(self.design.order), self._missing
        for place, (number, policy) in enumerate(left, of - len(left) + 1):
            self._add(self._campaign(replicates, number, policy))
            self._told(_line(self._lines[-1], place, of))
        self._again(replicates)

    @property
    def _missing(self) -> list[tuple[int, str]]:
        done = {(line["number"], line["policy"]) for line in self._lines if "policy" in line}
        return [each for each in self.design.order if each not in done]

    @property
    def _measured(self) -> int:
        """Rounds in which all kernels were measured again."""
        return sum("again" in line for line in self._lines)

    # -- the file ------------------------------------------------------------------------------------------------------

    def _begin(self) -> list[dict[str, Any]]:
        design = json.loads(json.dumps(asdict(self.design)))
        lines = read(self._out) if self._out.exists() else []
        if lines:
            if lines[0]["design"] != design:
                raise UserError(f"{self._out}: holds another ablation ({lines[0]['design']}); name a new file")
            return lines
        self._add_to(lines, {
            "what": "dropout policies compared by repeated campaigns of the tuner on a compiled C++ kernel",
            "design": design, "date": now(), "cpu": cpu_model(), "calls": REPEATS,
            "atrex": __version__, "torch": torch.__version__, "suite_hash": suite_hash(self._problem.folder),
            "knobs": {knob.name: list(knob.options) for knob in find(self._source)}, "baseline": self._first(),
        })  # fmt: skip
        return lines

    def _add(self, line: dict[str, Any]) -> None:
        self._add_to(self._lines, line)

    def _add_to(self, lines: list[dict[str, Any]], line: dict[str, Any]) -> None:
        lines.append(line)
        with self._out.open("a") as file:
            file.write(json.dumps(line) + "\n")

    # -- one campaign --------------------------------------------------------------------------------------------------

    def _first(self) -> Values:
        return {knob.name: knob.options[0] for knob in find(self._source)}

    def _campaign(self, replicates: Replicates, number: int, policy: str) -> dict[str, Any]:
        design, began = self.design, time.monotonic()
        folder = self._work / "campaign"
        shutil.rmtree(folder, ignore_errors=True)
        seed = 1000 * design.seed + number  # the same for all policies: they start alike, and part at a restart
        wish = Wish(
            design.operator, "cpp", CPU, ",".join(design.shapes), self._problem.folder, "tuner:0", policy=policy,
            seed=seed, restarts=design.restarts,
        )  # fmt: skip
        campaign = begin(folder, wish)
        lab = ReplicateLab(replicates, design.budget, random.Random(f"{seed}/{policy}"))
        agent = make(Choice.parse("tuner:0", None))
        try:
            Director(Supervisor(campaign, lab), agent, SESSION, lambda line: None).run()
            ended = campaign.get(campaign.numbers[-1], "stop").reason
        except Spent as spent:
            ended = str(spent)
        about = {"policy": policy, "number": number, "seed": seed, "spent": lab.rounds, "ended": ended}
        about |= told_of(campaign, lab.contested) | {"seconds": round(time.monotonic() - began, 2)}
        shutil.rmtree(folder)
        return about

    # -- the figures ---------------------------------------------------------------------------------------------------

    def _again(self, replicates: Replicates) -> None:
        """Every kernel that was ever an incumbent against the baseline, round after round, in an order drawn."""
        kernels = {name(found["knobs"]): found["knobs"] for line in self._lines for found in line.get("accepted", [])}
        first = render(self._source, self._first())
        sources = {each: render(self._source, chosen) for each, chosen in kernels.items()}
        for number in range(self._measured, self.design.again):
            rng = random.Random(f"{self.design.seed}/again/{number}")
            found = {}
            for each in rng.sample(sorted(sources), len(sources)):
                found[each] = [
                    [round(us, 3) for us in replicates.pair(first, sources[each], shape, rng)]
                    for shape in self.design.shapes
                ]
            self._add({"again": number, "us": found})
            self._told(f"{len(sources)} kernels measured again, round {number + 1} of {self.design.again}")


def told_of(campaign: Campaign, contested: list[tuple[str, int]]) -> dict[str, Any]:
    """What a campaign came to. `contested`: of each contest, the candidate's SHA-256 and the rounds spent by its end.

    A proposal is `repeated` when the campaign has had one that sets the same knob to the same value; of those,
    `duplicates` compile to what was measured, and cost no measurement.
    """
    spent, seen = dict(contested), set()
    proposals = repeated = duplicates = 0
    accepted, outcomes = [], {}
    for record in campaign.memory:
        outcome = record.validation.outcome
        if record.plan is not None:
            proposals += 1
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            key = moved(record.plan.change)
            repeated += key in seen
            duplicates += outcome == "duplicate" and key in seen
            seen.add(key)
        if outcome == "promoted":
            source = campaign.candidate(record.number).read_text(encoding="utf-8")
            at = spent[record.validation.candidate_sha256]
            accepted.append({"at": at, "knobs": values(find(source)), "seen": round(record.validation.ratio, 4)})
    return {
        "restarts": len(campaign.masks), "hidden": [len(mask.hidden) for mask in campaign.masks],
        "proposals": proposals, "repeated": repeated, "duplicates": duplicates, "outcomes": outcomes,
        "accepted": accepted,
    }  # fmt: skip


def name(knobs: Values) -> str:
    """A kernel by its knobs' values."""
    return ",".join(str(knobs[each]) for each in sorted(knobs))


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of an ablation; a last one that was cut off is dropped. Raises UserError for another file."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    try:
        lines = [json.loads(line) for line in whole.splitlines()]
    except ValueError:
        raise UserError(f"{path}: not JSON lines; expected what atrex optimize ablate wrote") from None
    if lines and not (isinstance(lines[0], dict) and "design" in lines[0]):
        raise UserError(f"{path}: expected what atrex optimize ablate wrote")
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return lines


def _line(line: dict[str, Any], number: int, of: int) -> str:
    return (
        f"{number:4d}/{of} {line['policy']:9} campaign {line['number']:3d}: {line['proposals']} proposals, "
        f"{line['repeated']} repeated, {len(line['accepted'])} promoted, {line['restarts']} restarts, "
        f"{line['spent']} measurements, {line['seconds']:.0f} s ({line['ended']})"
    )
