"""The candidate sets of a study as pages know them: name, address, board, and where each unit's record stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from atrex.errors import UserError
from atrex.problems.load import load_suite
from atrex.problems.model import Problem
from atrex.report.site.page import slug
from atrex.report.site.plot import Styles
from atrex.report.study.document import Group, Study
from atrex.report.study.sets import CandidateSet
from atrex.scoring.records import UnitRecord

BOARDS = {
    "default": "Default tools",
    "extended": "Extended tools",
    "optimizer": "Optimizer-augmented",
    "given": "Given kernels",
}
"""The first three rank; a set that no agent was asked for here has no condition to rank it under."""
PAGE_BYTES = 1_000_000
RECORD_CHARACTERS = 100_000


@dataclass(frozen=True)
class Shown:
    """A record as its page shows it: its JSON (cut where it is very long), in one `line` as in a run, its address."""

    record: UnitRecord
    line: str
    text: str
    href: str
    anchor: str


@dataclass(frozen=True)
class Entry:
    """One candidate set. `group` counts from 1; 0 is a set that stands in the optimizer's table alone."""

    set: CandidateSet
    name: str
    slug: str
    group: int
    board: str

    @property
    def page(self) -> str:
        return f"sets/{self.slug}/index.html"

    @property
    def chip(self) -> str:
        return self.set.records[0].chip

    @cached_property
    def units(self) -> dict[str, list[list[Shown]]]:
        """Operator -> its records, in pages of a bounded size."""
        found: dict[str, list[UnitRecord]] = {}
        for record in sorted(self.set.records, key=_order):
            found.setdefault(record.operator, []).append(record)
        return {operator: self._pages(operator, records) for operator, records in found.items()}

    @cached_property
    def by_unit(self) -> dict[tuple[str, str, bool], Shown]:
        return {
            (s.record.operator, s.record.shape, s.record.held_out): s
            for pages in self.units.values() for page in pages for s in page
        }  # fmt: skip

    def operator_page(self, operator: str) -> str | None:
        """The first page of an operator's records; None for one without a record."""
        return self._path(operator, 0) if operator in self.units else None

    def href(self, record: UnitRecord) -> str:
        return self.by_unit[record.operator, record.shape, record.held_out].href

    def _path(self, operator: str, page: int) -> str:
        return f"sets/{self.slug}/{slug(operator)}{f'~{page + 1}' if page else ''}.html"

    def _pages(self, operator: str, records: Sequence[UnitRecord]) -> list[list[Shown]]:
        pages: list[list[Shown]] = [[]]
        size = 0
        for record in records:
            line = record.model_dump_json()
            text = record.model_dump_json(indent=1)
            if len(text) > RECORD_CHARACTERS:
                text = f"{text[:RECORD_CHARACTERS]}\n... {len(text):,} characters in all, the file has the rest"
            if size + len(text) > PAGE_BYTES and pages[-1]:
                pages.append([])
                size = 0
            anchor = f"u-{'held-' if record.held_out else ''}{slug(record.shape)}"
            path = self._path(operator, len(pages) - 1)
            pages[-1].append(Shown(record, line, text, f"{path}#{anchor}", anchor))
            size += len(text)
        return pages


@dataclass(frozen=True)
class Entries:
    """All sets of a site, by group and alone; `optimized` are hashes of kernels that a campaign accepted."""

    study: Study
    suite: Path | None = None
    optimized: Collection[str] = ()
    all: list[Entry] = field(init=False)

    def __post_init__(self) -> None:
        placed = [(i, s) for i, group in enumerate(self.study.groups, 1) for s in group.sets]
        known = {_identity(s): s.name for _, s in placed}
        sides = self.study.pair_sets or ()
        placed += [(0, s) for s in sides if _identity(s) not in known]
        augmented = {_identity(s) for s in sides[1:]}
        taken: set[str] = set()
        entries = []
        for group, s in placed:
            name = s.name if s.name not in taken else f"{s.name} in {s.run.path}"
            taken.add(name)
            entries.append(Entry(s, name, slug(name), group, self._board(s, _identity(s) in augmented)))
        object.__setattr__(self, "all", entries)

    def of(self, group: Group) -> list[Entry]:
        identities = {_identity(s) for s in group.sets}
        return [e for e in self.all if _identity(e.set) in identities]

    def entry(self, s: CandidateSet) -> Entry:
        return next(e for e in self.all if _identity(e.set) == _identity(s))

    @cached_property
    def by_name(self) -> dict[str, Entry]:
        return {e.set.name: e for e in reversed(self.all)}

    @cached_property
    def styles(self) -> Styles:
        return Styles([e.name for e in self.all])

    @cached_property
    def problems(self) -> dict[str, Problem]:
        """The operators of the suites that were judged, as far as these are here."""
        found: dict[str, Problem] = {}
        for place in dict.fromkeys(self._place(e) for e in self.all):
            try:
                suite = load_suite(place)
            except UserError:
                continue  # the tables' notes say that it is not here
            found = {**suite.problems, **found}
        return found

    @property
    def operators(self) -> list[str]:
        """Every operator that a set has a record of, heaviest first."""
        weights: Mapping[str, float] = {name: w for e in reversed(self.all) for name, w in e.set.weights.values.items()}
        names = {r.operator for e in self.all for r in e.set.records}
        return sorted(names, key=lambda name: (-weights.get(name, 0.0), name))

    def _place(self, entry: Entry) -> Path | None:
        said = entry.set.run.run.get("suite")
        return self.suite or (Path(said) if said and said != "shipped" else None)

    def _board(self, s: CandidateSet, augmented: bool) -> str:
        if augmented or any(r.candidate_sha256 in self.optimized for r in s.records):
            return "optimizer"
        policy = s.generation.about.policy if s.generation else "given"
        return policy if policy in BOARDS else "given"


def operator_href(operator: str) -> str:
    """The page of an operator."""
    return f"operators/{slug(operator)}.html"


def _identity(s: CandidateSet) -> tuple[str, str]:
    return str(s.run.path.resolve()), s.label


def _order(record: UnitRecord) -> tuple:
    """By operator, listed shapes before held-out ones, by number where the ids are numbers."""
    digits = record.shape.lstrip("h")
    return record.operator, record.held_out, int(digits) if digits.isdecimal() else 0, record.shape
