"""The verbs of campaigns as tools of the Model Context Protocol, for the campaigns that a server was started with.

Docstrings are what an agent reads of a tool, so they say what comes back and when to call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atrex.errors import UserError, first_fault
from atrex.files import read_source
from atrex.optimize import verbs
from atrex.optimize.lab import Pending
from atrex.optimize.machine import position
from atrex.optimize.model import Plan
from atrex.optimize.store import Campaign
from atrex.optimize.view import told

Tool = Callable[..., dict[str, Any]]


def campaign_tools(folders: Sequence[Path]) -> tuple[Tool, ...]:
    """Tools for these campaigns. Raises UserError for a folder that is none."""
    served = Served(folders)
    return (served.campaign_next, served.campaign_plan, served.campaign_submit, served.campaign_status,
            served.campaign_log, served.campaign_stop)  # fmt: skip


class Served:
    """The campaigns of a server. `campaign` in a call is a folder's name or path; it may be left out where one is."""

    def __init__(self, folders: Sequence[Path]):
        self._folders = list(dict.fromkeys(folder.resolve() for folder in folders))
        for folder in self._folders:
            Campaign(folder)

    def campaign_next(self, campaign: str | None = None) -> dict[str, Any]:
        """What an optimization campaign wants next: a first kernel (baseline), plans, or kernels (candidate).

        Call it first and after every other step. Does what is the supervisor's (evidence, cards) and lays files out in
        the folder `view`, which is emptied before: kernel.py to beat, evidence.json, cards/, memory.json and others.
        Returns step, iteration, `most` (how many plans or kernels may be handed in), view and `task`, which says what
        to do; step is done at the end. `waits` says that a device on another machine has to measure first.
        """
        folder, said = self._folder(campaign), []
        try:
            found = verbs.next_step(folder, said.append)
        except Pending as pending:
            return self._where(folder) | {"waits": str(pending), "said": said}
        return self._where(folder) | {
            "most": found.most, "view": str(found.view) if found.view else None, "task": found.task,
            "stop": found.stop.model_dump() if found.stop else None, "said": said,
        }  # fmt: skip

    def campaign_plan(
        self,
        plans: list[dict[str, Any]] | None = None,
        no_direction: str | None = None,
        campaign: str | None = None,
    ) -> dict[str, Any]:
        """Hand in the plans of an iteration, one an attempt and `most` of campaign_next at most; or why there is none.

        A plan has bottleneck, category (tiling, vectorization, layout, prefetch, synchronization, split_fusion,
        instruction, precision, launch), change, cards (ids, at least one), gain (predicted old time over new), and may
        have risks and figures. no_direction restarts the search with part of the memory hidden, or ends it.
        """
        folder, said = self._folder(campaign), []
        read = []
        for number, plan in enumerate(plans or [], 1):
            try:
                read.append(Plan.model_validate(plan))
            except ValidationError as error:
                raise UserError(f"plan {number}: {first_fault(error)}") from None
        try:
            ended = verbs.plan(folder, read, no_direction, said.append)
        except Pending as pending:
            raise UserError(str(pending)) from None
        return self._where(folder) | {"stop": ended.model_dump() if ended else None, "said": said}

    def campaign_submit(
        self, kernels: list[str] | None = None, files: list[str] | None = None, campaign: str | None = None
    ) -> dict[str, Any]:
        """Hand in kernels: the baseline, or a candidate for each plan, in their order. It may take minutes.

        Either `kernels`, whole sources, or `files`, paths in the campaign's view folder. They are judged; the best is
        contested with the incumbent, and replaces it only when it is shown to be faster. Returns `records`: what was
        predicted and measured of each, and the outcome with its reason. None while other kernels of the iteration are
        missing, when a baseline did not pass (`said` tells why), or while a device has to measure (`waits`).
        """
        folder, said = self._folder(campaign), []
        if bool(kernels) == bool(files):
            raise UserError("submit: expected kernels or files, one of the two")
        sources = kernels or [read_source(_inside(folder / verbs.VIEW, name)) for name in files or []]
        try:
            records, _ = verbs.submit(folder, sources, said.append)
        except Pending as pending:
            return self._where(folder) | {"records": [], "waits": str(pending), "said": said}
        return self._where(folder) | {"records": [told(record) for record in records], "said": said}

    def campaign_status(self, campaign: str | None = None) -> dict[str, Any]:
        """Where a campaign stands: step, iterations, attempts, what was accepted, S of the first and best kernel."""
        return verbs.status(self._folder(campaign))

    def campaign_log(self, campaign: str | None = None) -> dict[str, Any]:
        """A campaign as a story: what was seen, planned, predicted, measured and decided, in `lines`."""
        return {"lines": verbs.log(self._folder(campaign))}

    def campaign_stop(self, reason: str, campaign: str | None = None) -> dict[str, Any]:
        """End a campaign for good, and say why."""
        folder = self._folder(campaign)
        verbs.stop(folder, reason)
        return verbs.status(folder)

    def _folder(self, asked: str | None) -> Path:
        known = ", ".join(map(str, self._folders))
        if asked is None:
            if len(self._folders) > 1:
                raise UserError(f"campaign: expected one of {known}")
            return self._folders[0]
        named = [folder for folder in self._folders if folder.name == asked]
        found = named if len(named) == 1 else [folder for folder in self._folders if folder == Path(asked).resolve()]
        if not found:
            raise UserError(f"campaign: {asked!r} is not served here; expected one of {known}")
        return found[0]

    @staticmethod
    def _where(folder: Path) -> dict[str, Any]:
        at = position(Campaign(folder))
        return {"step": at.step, "iteration": at.number}


def _inside(folder: Path, name: str) -> Path:
    """A file of a folder by its name there. Raises UserError for one that lies elsewhere."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UserError(f"{name}: lies elsewhere; expected a file in {folder}")
    return path
