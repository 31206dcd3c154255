"""Pages over a folder that grows: each part of the site is built anew when its files have changed, and only then.

A part collects what its pages show when it is built, and renders a page when somebody asks for it. A part whose
building takes long is built no more often than leaves most of the time to others, however fast its files change.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.report.site import campaign as campaign_site
from atrex.report.site import chips, lists, whole, wiki
from atrex.report.site.entries import Entries
from atrex.report.site.lists import CAMPAIGNS, FIRST, TRACES, Told
from atrex.report.site.page import PLOTLY, SCRIPT, STYLE, Nav, Pages, Site, asset, plotly_script, slug
from atrex.report.site.runs import TITLE, runs_navigation, runs_pages
from atrex.report.sources import Kind, Source, below, names
from atrex.report.study.document import study
from atrex.report.study.sets import find_sets
from atrex.report.study.table import as_csv
from atrex.wiki.load import Wiki, load_wiki

REST = 4.0  # a part that took t to build is left alone for this times t
EVENTS = "/events"
RUNS, REFERENCE, LISTS = "runs", "reference", "lists"
OTHERS = (CAMPAIGNS, TRACES, *whole.REFERENCE)


@dataclass
class Shelf(Site):
    """A site in memory: what pages show is kept, and a page is rendered when it is read, once."""

    folder: Path = Path("-")
    pages: Pages = field(default_factory=lambda: Pages(TITLE))
    _made: dict[str, Callable[[], bytes]] = field(default_factory=dict)
    _read: dict[str, tuple[tuple[Nav, ...], bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lock = threading.Lock()

    def page(self, path: str, template: str, *, title: str, crumbs: Sequence[Nav] = (), **context: Any) -> str:
        return self._keep(
            path, lambda: self.pages.render(path, template, title=title, crumbs=crumbs, **context).encode()
        )

    def csv(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        kept = list(rows)
        return {"CSV": self._keep(f"data/{name}.csv", lambda: as_csv(columns, kept).encode("utf-8", "replace"))}

    def json(self, name: str, document: Any) -> dict[str, str]:
        text = lambda: json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"  # noqa: E731
        return {"JSON": self._keep(f"data/{name}.json", text)}

    def binary(self, path: str, content: bytes) -> str:
        return self._keep(path, lambda: content)

    def close(self) -> None:
        pass

    def _keep(self, path: str, made: Callable[[], bytes]) -> str:
        self._made[path] = made
        return path

    def read(self, path: str) -> bytes | None:
        """The file at a path, None where there is none."""
        with self.lock:
            made, nav = self._made.get(path), tuple(self.pages.nav)
            if made is None:
                return None
            if self._read.get(path, (None, b""))[0] != nav:  # every page has the navigation on it
                self._read[path] = nav, made()
            return self._read[path][1]


class Part:
    """Some pages of the site, with the state of the files that they were built from."""

    def __init__(self, build: Callable[[], tuple[Shelf, Any]], state: Callable[[], str], rest: float = REST):
        self._build, self._state, self._rest, self._lock = build, state, rest, threading.Lock()
        self._shelf, self.told = Shelf(), None
        self._of: str | None = None
        self._rested = 0.0
        self.built = 0

    @property
    def due(self) -> bool:
        """Whether files have changed since it was built, and it has rested from that."""
        return time.monotonic() >= self._rested and self._state() != self._of

    def shelf(self) -> Shelf:
        """The pages, built anew where they are due."""
        with self._lock:
            if self.due:
                state, began = self._state(), time.monotonic()
                self._shelf, self.told = self._build()
                self._of, self.built = state, self.built + 1
                self._rested = time.monotonic() + self._rest * (time.monotonic() - began)
            return self._shelf


class Live:
    """The site over everything at or below a folder. `find` looks for what is there; `read` answers with a file.

    `every`: seconds between two looks for folders; `rest` as of the parts.
    """

    def __init__(self, root: Path, rest: float = REST, every: float = 1.0):
        self.root, self._rest, self._every = root, rest, every
        self._lock = threading.Lock()
        self._sources: list[Source] = []
        self._looked, self._took = 0.0, 0.0
        self._parts: dict[str, Part] = {
            RUNS: Part(self._runs, self._state_of_runs, rest),
            LISTS: Part(self._lists, lambda: self._states(Kind.CAMPAIGN, Kind.TRACES), rest),
            REFERENCE: Part(self._reference, lambda: ""),
        }
        self._assets: dict[str, bytes] = {}
        self._nav: list[Nav] = []  # of every part; what runs add to it is known once they have been read
        self.find()

    def find(self) -> None:
        """Look for runs, campaigns and data sets that came or went; a folder that takes long to search seldom."""
        with self._lock:
            now = time.monotonic()
            if now < self._looked + max(self._every, 20 * self._took) and self._looked:
                return
            self._sources = below(self.root)
            self._looked, self._took = now, time.monotonic() - now
            called = self._called()
            for source in self._sources:
                key = _key(source, called)
                if key is not None and key not in self._parts:
                    self._parts[key] = Part(self._builder(source, called[source.path]), source.state, self._rest)
            there = {_key(source, called) for source in self._sources}
            for gone in [k for k in self._parts if k not in (RUNS, LISTS, REFERENCE) and k not in there]:
                del self._parts[gone]

    def read(self, path: str) -> bytes | None:
        """The file at a path from the site's root, None where there is none."""
        if path in (STYLE, SCRIPT, PLOTLY):
            if path not in self._assets:
                self._assets[path] = plotly_script() if path == PLOTLY else asset(path).encode()
            return self._assets[path]
        self.find()
        part = self._parts.get(self.part_of(path))
        if part is None:
            return None
        if not self._nav:  # runs may be many: nobody waits for their names in the navigation
            self._nav[:] = [FIRST, *OTHERS]
            threading.Thread(target=self._parts[RUNS].shelf, daemon=True).start()
        return part.shelf().read(path)

    def part_of(self, path: str) -> str:
        """Which part the page at a path belongs to."""
        where = path.removeprefix("data/").split("/")
        if where[0] in ("chips", "wiki", "chips.json", "wiki.json", "wiki.csv") or path == wiki.SCRIPT:
            return REFERENCE
        if where[0] in ("campaigns", "traces"):
            return LISTS if len(where) == 2 and where[1] == "index.html" else "/".join(where[:2])
        return LISTS if where[0] in ("campaigns.csv", "traces.csv") else RUNS

    def built(self, part: str) -> int:
        """How often a part has been built."""
        found = self._parts.get(part)
        return found.built if found else 0

    def due(self) -> list[str]:
        """The parts that would be built anew if they were asked for."""
        self.find()
        return [key for key, part in list(self._parts.items()) if key != REFERENCE and part.due]

    @cached_property
    def _cards(self) -> Wiki:
        return load_wiki()

    # -- parts -----------------------------------------------------------------------------------------------------

    def _of(self, *kinds: Kind) -> list[Source]:
        return [source for source in self._sources if source.kind in kinds]

    def _called(self) -> dict[Path, str]:
        """Campaigns and data sets by their path below the root: a name that no newcomer changes."""
        found = {}
        for source in self._of(Kind.CAMPAIGN, Kind.TRACES):
            name = source.path.relative_to(self.root).as_posix()
            found[source.path] = name if name != "." else next(iter(names([source.path]).values()))
        return found

    def _states(self, *kinds: Kind) -> str:
        return " ".join(f"{source.path}={source.state()}" for source in self._of(*kinds))

    def _state_of_runs(self) -> str:
        """Without a run the first page tells of all else."""
        return self._states(Kind.RUN, Kind.GENERATED) if self._of(Kind.RUN) else self._states(*Kind)

    def _shelf(self, part: str, notes: Sequence[str] = ()) -> Shelf:
        events = None if part == REFERENCE else f"{EVENTS}?part={part}"
        return Shelf(pages=Pages(TITLE, self._nav, notes, events))

    def _runs(self) -> tuple[Shelf, None]:
        fault = "No run is below this folder."
        if self._of(Kind.RUN):
            try:
                made = study(find_sets([self.root]))
                entries = Entries(made, None, self._accepted())
                self._nav[:] = [*runs_navigation(entries), *OTHERS]
                shelf = self._shelf(RUNS, made.notes)
                runs_pages(shelf, entries)
                return shelf, None
            except UserError as error:  # most often: no unit is recorded yet
                fault = str(error)
        self._nav[:] = [FIRST, *OTHERS]
        shelf = self._shelf(RUNS)
        lists.first_page(shelf, self._told(Kind.CAMPAIGN), self._told(Kind.TRACES), fault)
        return shelf, None

    def _accepted(self) -> set[str]:
        found: set[str] = set()
        for source in self._of(Kind.CAMPAIGN):
            with contextlib.suppress(UserError):
                found |= whole.accepted([source.path])
        return found

    def _told(self, kind: Kind) -> list[Told]:
        called, found = self._called(), []
        for source in self._of(kind):
            part = self._parts[_key(source, called) or ""]
            part.shelf()
            found.append(part.told)
        return found

    def _lists(self) -> tuple[Shelf, None]:
        shelf = self._shelf(LISTS)
        lists.campaigns_page(shelf, self._told(Kind.CAMPAIGN))
        lists.traces_page(shelf, self._told(Kind.TRACES))
        return shelf, None

    def _reference(self) -> tuple[Shelf, None]:
        shelf = self._shelf(REFERENCE)
        chips.chip_pages(shelf, self._cards.cards)
        wiki.wiki_pages(shelf, self._cards)
        return shelf, None

    def _builder(self, source: Source, name: str) -> Callable[[], tuple[Shelf, Told]]:
        def build() -> tuple[Shelf, Told]:
            at = f"{'campaigns' if source.kind is Kind.CAMPAIGN else 'traces'}/{slug(name)}"
            shelf = self._shelf(at)
            try:
                if source.kind is Kind.TRACES:
                    return shelf, whole.traced_pages(shelf, source.path, name, 1)
                pages = chips.pages_of_chips()
                return shelf, campaign_site.campaign_pages(shelf, source.path, name, whole.titles(self._cards), pages)
            except (UserError, OSError) as error:  # damaged, or written to at this moment
                shelf = self._shelf(at)
                shelf.page(f"{at}/index.html", "chips.html", title=name, lead=str(error), tables=[])
                return shelf, Told(name, f"{at}/index.html", {}, str(error))

        return build


def _key(source: Source, called: Mapping[Path, str]) -> str | None:
    """The part that a source makes up alone: where its pages stand."""
    if source.kind is Kind.CAMPAIGN:
        return campaign_site.folder_of(called[source.path])
    return f"traces/{slug(called[source.path])}" if source.kind is Kind.TRACES else None
