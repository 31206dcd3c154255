"""What there is to report on in a folder: runs, campaigns and trace data sets, told apart by a file in each."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from atrex.errors import UserError
from atrex.generate.records import ABOUT, RECORDS
from atrex.scoring.runs import RUN_FILE, UNITS_FILE

CAMPAIGN_FILE, TRACES_FILE = "campaign.json", "atrex-traces.json"


class Kind(StrEnum):
    RUN = "run"
    GENERATED = "generated"
    CAMPAIGN = "campaign"
    TRACES = "traces"


# In this order: the first file that is there says what a folder is.
_MARKS = {TRACES_FILE: Kind.TRACES, CAMPAIGN_FILE: Kind.CAMPAIGN, RUN_FILE: Kind.RUN, ABOUT: Kind.GENERATED}
# What a source is made of: files and folders in it, whose content is what pages are drawn from.
_CONTENT = {
    Kind.RUN: (RUN_FILE, UNITS_FILE),
    Kind.GENERATED: (ABOUT, RECORDS),
    Kind.CAMPAIGN: (
        CAMPAIGN_FILE, "roofline.json", "masks.jsonl", "widths.jsonl", "spend.jsonl", "memory", "iterations",
        "measurements", "transcripts",
    ),
    Kind.TRACES: (TRACES_FILE, "traces"),
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Source:
    """One folder and what it is."""

    path: Path
    kind: Kind

    def state(self) -> str:
        """A digest of the names, sizes and times of everything that its pages are drawn from."""
        digest = hashlib.sha256()
        for name in _CONTENT[self.kind]:
            for path, about in _files(self.path / name):
                digest.update(f"{path}\0{about.st_size}\0{about.st_mtime_ns}\n".encode("utf-8", "replace"))
        return digest.hexdigest()


def _files(path: Path) -> Iterator[tuple[str, os.stat_result]]:
    try:
        if not path.is_dir():
            yield str(path), path.stat()
            return
        for entry in sorted(os.scandir(path), key=lambda e: e.name):
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                yield entry.path, entry.stat()
    except OSError:
        return  # taken away meanwhile, or not there yet


def below(path: Path) -> list[Source]:
    """Everything at or below a folder, in order of path.

    Hidden folders and what lies within a source are not looked at, but for a folder of generated candidates: runs that
    judged them may stand in it.
    """
    found = []
    for folder, folders, files in os.walk(path):
        kind = next((kind for mark, kind in _MARKS.items() if mark in files), None)
        if kind is not None:
            found.append(Source(Path(folder), kind))
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and (kind is None or kind is Kind.GENERATED)
        )
    return sorted(found)


def recognise(paths: Sequence[Path]) -> list[Source]:
    """What the arguments of a report are. Raises UserError for one that is not there or holds nothing to report on."""
    found: dict[Path, Source] = {}
    for path in paths:
        sources = [source for source in below(path) if source.kind is not Kind.GENERATED] if path.is_dir() else []
        if not sources:
            what = "holds nothing to report on" if path.is_dir() else "no such folder"
            raise UserError(
                f"{path}: {what}: expected a run ({RUN_FILE}), a campaign ({CAMPAIGN_FILE}), a data set of traces "
                f"({TRACES_FILE}), or a folder that holds some"
            )
        for source in sources:
            found.setdefault(source.path.resolve(), source)
    return list(found.values())


def names(paths: Iterable[Path]) -> dict[Path, str]:
    """A short name for each folder: its own, with as many of the folders around it as tell it from the others."""
    parts = {path: path.resolve().parts for path in paths}
    found: dict[Path, str] = {}
    for path, mine in parts.items():
        others = [other for each, other in parts.items() if each != path]
        length = 1
        while length < len(mine) and any(other[-length:] == mine[-length:] for other in others):
            length += 1
        found[path] = "/".join(mine[-length:])
    return found
