"""Hardware sheets: a chip's figures from atrex.hardware.chips, an architecture's from data/architectures, as cards.

Nothing is written twice: the judge's chip files are the source of the chips' sheets, so that a roofline and the wiki
cannot disagree. Every value has its document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.hardware.chip import Chip, chip_ids, load_chip
from atrex.wiki.schema import Card, Kind, Relation, Source
from atrex.wiki.vocabulary import DATA, nearest, read_yaml, vocabulary


@dataclass(frozen=True)
class Value:
    """One figure: `value` in `unit` (base units; text where there is no number), and the document that says so."""

    name: str
    value: float | str
    unit: str
    source: str
    url: str
    date: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.shown} ({self.note})" if self.note else self.shown

    @property
    def shown(self) -> str:
        """The value as a person reads it: 4.8 TB/s, 50 MiB, 132 SM."""
        if isinstance(self.value, str):
            return self.value
        if self.unit in ("FLOP/s", "B/s", "Hz"):
            for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
                if self.value >= factor:
                    return f"{self.value / factor:.5g} {prefix}{self.unit}"
        if self.unit == "B":
            return f"{self.value / 1e9:.4g} GB" if self.value >= 1e9 else f"{self.value / 2**20:g} MiB"
        return f"{self.value:g} {self.unit}"


@dataclass(frozen=True)
class Sheet:
    """The figures of a chip or of an architecture. `card` is the id of its card."""

    card: str
    name: str
    title: str
    vendor: str
    arch: str
    values: Mapping[str, Value]
    words: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "card": self.card, "name": self.name, "title": self.title, "vendor": self.vendor, "arch": self.arch,
            "values": {name: asdict(value) for name, value in self.values.items()},
        }  # fmt: skip


@lru_cache(maxsize=1)
def sheets() -> dict[str, Sheet]:
    """Every sheet by its card's id: the chips whose architecture is known, then the architectures."""
    known = vocabulary().architectures
    chips = [_chip_sheet(load_chip(name)) for name in chip_ids()]
    architectures = [read_architecture(DATA / "architectures" / f"{arch}.yaml") for arch in known]
    return {sheet.card: sheet for sheet in [*chips, *architectures]}


def _chip_sheet(chip: Chip) -> Sheet:
    values = {
        name: Value(
            name, entry["value"], entry["unit"], entry["source"], entry.get("url") or entry["where"], entry["date"],
            entry.get("note", ""),
        )
        for name, entry in chip.sources.items()
    }  # fmt: skip
    words = (chip.id, *chip.match, "memory bandwidth, HBM capacity, L2 size, tensor TFLOPS, roofline ceilings")
    title = f"{chip.name}: dense peaks, memory, caches" if chip.arch != "unknown" else chip.name
    return Sheet(f"chip-{_slug(chip.id)}", chip.id, title, chip.vendor, chip.arch, values, words)


def read_architecture(path: Path) -> Sheet:
    """An architecture's file. Raises UserError for a value without a source that the file describes."""
    data = read_yaml(path.read_text())
    values = {}
    for name, entry in data["values"].items():
        document = data["sources"].get(entry.get("source"))
        if document is None or not str(document.get("url", "")).startswith("https://"):
            raise UserError(
                f"{path}: values.{name}: source: expected one of {', '.join(data['sources'])}, with its url"
            )
        values[name] = Value(
            name, entry["value"], entry.get("unit", ""), document["title"], document["url"],
            document["date"].isoformat(), entry.get("note", ""),
        )  # fmt: skip
    about = vocabulary().architectures[path.stem]
    words = (path.stem, about["name"], *about["chips"])
    return Sheet(f"arch-{_slug(path.stem)}", path.stem, data["title"], about["vendor"], path.stem, values, words)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def find_sheet(name: str) -> Sheet:
    """The sheet of a chip (H200), an architecture (sm_90, Hopper), or a card's id. UserError lists what there is."""
    wanted = _slug(name)
    for sheet in sheets().values():
        if wanted in (sheet.card, _slug(sheet.name)):
            return sheet
    for arch, about in vocabulary().architectures.items():
        if wanted in map(_slug, (about["name"], *about["words"])):
            return sheets()[f"arch-{_slug(arch)}"]
    names = [sheet.name for sheet in sheets().values()]
    raise UserError(f"no sheet {name!r}{nearest(name, names) or ': expected one of ' + ', '.join(names)}")


def find_value(sheet: Sheet, field: str) -> tuple[Sheet, Value]:
    """One value, from the sheet or from that of its architecture; dots, dashes and underscores are alike.

    Part of a name will do where only one value has it ("bandwidth", "l2"). UserError otherwise.
    """
    wanted = _slug(field)
    arch = sheets().get(f"arch-{_slug(sheet.arch)}")
    places = [sheet] if arch is None or arch is sheet else [sheet, arch]
    for place in places:
        exact = [value for name, value in place.values.items() if _slug(name) == wanted]
        partly = [value for name, value in place.values.items() if f"-{wanted}-" in f"-{_slug(name)}-"]
        if exact or len(partly) == 1:
            return place, (exact or partly)[0]
        if partly:
            raise UserError(f"{sheet.name}: {field!r} is any of {', '.join(value.name for value in partly)}")
    names = [name for place in places for name in place.values]
    raise UserError(
        f"{sheet.name}: no value {field!r}{nearest(field, names) or ': expected one of ' + ', '.join(names)}"
    )


def as_card(sheet: Sheet) -> Card:
    """The sheet as a card of the wiki: a table whose rows cite public documents. Values without one are left out."""
    public = [value for value in sheet.values.values() if value.url.startswith("https://")]
    documents = list(dict.fromkeys((value.source, value.url, value.date) for value in public))
    rows = [
        f"| {value.name} | {value.shown} | {value.note or '-'} | "
        f"[{documents.index((value.source, value.url, value.date)) + 1}] |"
        for value in public
    ]
    known = sheet.arch in vocabulary().architectures
    relations = {Relation.SPECIALIZES: (f"arch-{_slug(sheet.arch)}",)} if known and sheet.card[:5] == "chip-" else {}
    return Card(
        id=sheet.card,
        kind=Kind.HARDWARE,
        title=sheet.title,
        vendor=sheet.vendor if sheet.vendor in ("nvidia", "amd") else "any",
        arch=(sheet.arch,) if known else ("any",),
        words=sheet.words,
        relations=relations,
        sources=tuple(Source(title=t, where=url, date=date.fromisoformat(day)) for t, url, day in documents),
        body="\n".join(["| figure | value | remark | source |", "|---|---|---|---|", *rows]) + "\n",
    )


def hardware_cards() -> list[Card]:
    """The sheets of every chip and architecture whose documents are public."""
    return [as_card(sheet) for sheet in sheets().values() if sheet.arch in vocabulary().architectures]
