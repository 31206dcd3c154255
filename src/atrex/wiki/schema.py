"""The card: what its front matter may say, and which sections its text has.

A card is one Markdown file with YAML front matter under `cards/<kind>/<id>.md`. docs/wiki.md tells how to write one.
"""

from __future__ import annotations

import re
from datetime import date
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator


class Kind(StrEnum):
    PATTERN = "pattern"  # a technique: what it cures, how it is done, what it brings
    PLAYBOOK = "playbook"  # how to attack one operator
    REFERENCE = "reference"  # how a language, an instruction set or a profiler says things
    RECIPE = "recipe"  # steps from one form to another
    PITFALL = "pitfall"  # something that went wrong, with its evidence
    HARDWARE = "hardware"  # a chip or an architecture; rendered from data, never written by hand
    KERNEL = "kernel"  # a kernel that the judge has passed


class Relation(StrEnum):
    EXPLAINS = "explains"  # this card says why what the other describes happens
    FIXES = "fixes"  # doing this cures the other
    CAUSES = "causes"  # this brings the other about
    CONTRADICTS = "contradicts"  # both cannot be followed at once
    SPECIALIZES = "specializes"  # the same for a narrower case: one vendor, one operator
    NEEDS = "needs"  # this can be done only where the other holds
    IMPLEMENTS = "implements"  # a kernel or recipe that does what the other describes
    REPLACED_BY = "replaced_by"  # the other is right, this is kept for its links


# What an edge is called when it is walked against its direction.
INVERSE = {
    Relation.EXPLAINS: "explained by",
    Relation.FIXES: "fixed by",
    Relation.CAUSES: "caused by",
    Relation.CONTRADICTS: "contradicted by",
    Relation.SPECIALIZES: "generalizes",
    Relation.NEEDS: "needed by",
    Relation.IMPLEMENTS: "implemented by",
    Relation.REPLACED_BY: "replaces",
}

# Second-level headings in their order. A card has all of its kind's; others may follow.
SECTIONS: dict[Kind, tuple[str, ...]] = {
    Kind.PATTERN: (
        "What to look for", "Why it happens", "What to change", "What it should bring", "When not to",
    ),
    Kind.PITFALL: (
        "What to look for", "Why it happens", "What to change", "What it should bring", "When not to",
    ),
    Kind.PLAYBOOK: (
        "Regime", "Structure that wins", "Ceilings", "First kernel", "What to profile", "When not to",
    ),
    Kind.REFERENCE: ("What it is for", "How to use it", "Limits"),
    Kind.RECIPE: ("When", "Steps", "How to check", "What goes wrong"),
    Kind.HARDWARE: (),
    Kind.KERNEL: ("What it does", "How it was verified", "Limits"),
}  # fmt: skip
# Kinds that claim something about kernels, and so need a sentence that a measurement can refute.
CLAIMING = (Kind.PATTERN, Kind.PITFALL, Kind.PLAYBOOK, Kind.RECIPE)

REVIEW = "REVIEW:"
"""Marks what a draft leaves to whoever reviews it; a card has none."""

ID = re.compile(r"^[a-z0-9]+(-[a-z0-9]+)*$")
_NVIDIA_COUNTER = re.compile(r"^[a-z0-9]+__[a-z0-9_]+(\.[a-z0-9_]+)*$")
_AMD_COUNTER = re.compile(r"^[A-Z][A-Za-z0-9]*(_[A-Za-z0-9]+)*$")
_OUR_COUNTER = re.compile(r"^atrex\.[a-z0-9_]+$")

# A file under wiki/kernels, or one of the project's examples.
KERNEL_PATH = r"^([a-z0-9_]+|examples/candidates/[a-z]+)/[a-z0-9_]+\.py$"

CardId = Annotated[str, StringConstraints(pattern=ID.pattern, max_length=60)]
Line = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Symptom(_Model):
    """A counter and the range of it that points to the card. `min` and `max` are in the counter's own unit.

    Counters: ncu's metric names with their suffix ("dram__throughput.avg.pct_of_peak_sustained_elapsed"), rocprofv3's
    counter names ("SQ_LDS_BANK_CONFLICT"), or a figure that `atrex profile` derives ("atrex.roofline_share").
    """

    counter: str
    min: float | None = None
    max: float | None = None
    note: Line | None = None

    @field_validator("counter")
    @classmethod
    def _named(cls, counter: str) -> str:
        if not any(form.match(counter) for form in (_NVIDIA_COUNTER, _AMD_COUNTER, _OUR_COUNTER)):
            raise ValueError(f"{counter!r} is no metric of ncu, no counter of rocprofv3 and no atrex. figure")
        return counter

    @model_validator(mode="after")
    def _bounded(self) -> Symptom:
        if self.min is None and self.max is None:
            raise ValueError(f"{self.counter}: give min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"{self.counter}: min {self.min:g} is above max {self.max:g}")
        return self

    @property
    def vendor(self) -> Literal["nvidia", "amd", "any"]:
        """Whose profiler has this counter."""
        if _OUR_COUNTER.match(self.counter):
            return "any"
        return "nvidia" if _NVIDIA_COUNTER.match(self.counter) else "amd"

    def holds(self, value: float) -> bool:
        """Whether a measured value lies in the range, ends included."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


class Source(_Model):
    """Where a statement can be followed to: an http(s) address, or a path in this project ("docs/timing.md").

    `date` is the day on which it was read, or on which it was measured.
    """

    title: Line
    where: Line
    date: date


class Statement(_Model):
    """What the card claims, so that it can be false, and how to see whether it is.

    `test` names what is observed: a counter, a command or a comparison, in backticks, or a number to compare with.
    """

    claim: Line
    test: Line


class Evidence(_Model):
    """What a pitfall's verdict rests on. `source` counts the card's sources from 1."""

    what: Line
    source: Annotated[int, Field(ge=1)]


class Verification(_Model):
    """A record that holds the claim up. `record` is a path under results/.

    For kernels `sha256` is that of the kernel's file; the record names the same. `measured`: the judge passed every
    shape of the operator on `chip`, with the score `S`, the median S over its published shapes. `compiled`:
    cross-compiled for every shape for the target `chip`, and its algorithm checked by `twin`, a kernel or test that
    runs elsewhere.
    """

    level: Literal["measured", "compiled"]
    record: Line
    chip: Line
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    date: date
    S: Annotated[float, Field(gt=0, le=1)] | None = None
    twin: Line | None = None


class Card(_Model):
    """One entry of the wiki: its front matter, and `body`, the Markdown below it."""

    id: CardId
    kind: Kind
    title: Annotated[str, StringConstraints(strip_whitespace=True, min_length=8, max_length=110)]
    vendor: Literal["any", "nvidia", "amd"] = "any"
    arch: tuple[str, ...] = ("any",)
    dsl: tuple[str, ...] = ("any",)
    operators: tuple[str, ...] = ("any",)
    words: tuple[Annotated[Line, BeforeValidator(str)], ...] = ()  # YAML reads 2147483648 as a number
    symptoms: tuple[Symptom, ...] = ()
    statement: Statement | None = None
    mechanism: Line | None = None
    evidence: tuple[Evidence, ...] = ()
    relations: dict[Relation, tuple[CardId, ...]] = Field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    kernel: Annotated[str, StringConstraints(pattern=KERNEL_PATH)] | None = None
    verified: tuple[Verification, ...] = ()
    body: str = ""

    @field_validator("arch", "dsl", "operators")
    @classmethod
    def _any_alone(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError("empty; leave the field out for any")
        if "any" in names and len(names) > 1:
            raise ValueError("any stands alone")
        return names

    @model_validator(mode="after")
    def _complete(self) -> Card:
        if self.kind == Kind.PITFALL and not (self.mechanism and self.evidence):
            raise ValueError("a pitfall has mechanism and evidence")
        if (self.kind == Kind.KERNEL) != (self.kernel is not None):
            raise ValueError("cards of kind kernel name their file in kernel, and no others do")
        if self.kind == Kind.KERNEL and not self.verified:
            raise ValueError("a kernel has verified: a record that it was measured or compiled")
        return self

    @cached_property
    def sections(self) -> dict[str, str]:
        """The text under each second-level heading, in order; what stands before the first is under ""."""
        parts = re.split(r"^## +(.+?) *$", _without_fences(self.body), flags=re.M)
        named = {"": parts[0].strip()} if parts[0].strip() else {}
        return named | {parts[i]: parts[i + 1].strip() for i in range(1, len(parts), 2)}

    @property
    def edges(self) -> list[tuple[Relation, str]]:
        """Every relation as (type, id of the other card)."""
        return [(relation, other) for relation, others in self.relations.items() for other in others]


def _without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```[^\S\n]*$", "", text, flags=re.M | re.S)


def prose(text: str) -> str:
    """The text without fenced code."""
    return _without_fences(text)
