"""Pages and the folder they stand in: templates, navigation, script and stylesheet, data beside what is shown.

Every path here is one from the site's root, with forward slashes; pages link to each other by relative paths, so that
the folder opens from disk and from any place on a server.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from atrex.errors import UserError
from atrex.report.site.plot import figure
from atrex.report.site.table import TableView, body
from atrex.report.study.table import as_csv

STYLE, SCRIPT, PLOTLY = "assets/style.css", "assets/site.js", "assets/plotly.min.js"
MANIFEST = "site.json"
"""Names the files of the site, so that the next one written to the same folder takes away what it no longer has."""
_KEPT = re.compile(r"[^a-z0-9._-]+")


class Nav(NamedTuple):
    """An entry of the navigation, on every page."""

    title: str
    href: str


@dataclass(frozen=True)
class Pages:
    """Renders pages. `events` is the address of server-sent events on which a live page draws itself anew."""

    title: str
    nav: Sequence[Nav] = ()
    notes: Sequence[str] = ()
    events: str | None = None

    @cached_property
    def environment(self) -> Environment:
        """Every value in a template is escaped; a name that was not given is an error."""
        made = Environment(
            loader=PackageLoader("atrex.report.site"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        made.globals.update(url=_url, body=_body, embedded=embedded, figure=figure, site=self, style=STYLE,
                            script=SCRIPT, plotly=PLOTLY)  # fmt: skip
        return made

    def render(self, path: str, template: str, *, title: str, crumbs: Sequence[Nav] = (), **context: Any) -> str:
        """The page that stands at `path`; `crumbs` lead to it, the first of them from the navigation."""
        return self.environment.get_template(template).render(
            path=path, title=title, crumbs=crumbs, here=(crumbs[0].href if crumbs else path), **context
        )


@dataclass
class Site:
    """A folder of pages. Nothing is left of an earlier site in it once `close` has been called.

    Raises UserError for a folder that cannot be written, and for one that holds files of something else.
    """

    folder: Path
    pages: Pages
    written: dict[str, int] = field(default_factory=dict)
    """Path -> bytes."""
    _before: list[str] = field(default_factory=list)
    _folders: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        manifest = self.folder / MANIFEST
        try:
            if manifest.is_file():
                self._before = [str(name) for name in json.loads(manifest.read_text(encoding="utf-8"))["files"]]
            elif self.folder.exists() and any(self.folder.iterdir()):
                raise UserError(
                    f"--out {self.folder}: holds files that no report has written; expected a new or empty folder"
                )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"--out {self.folder}: {MANIFEST} cannot be read ({error})") from None
        for path in (STYLE, SCRIPT):
            self.text(path, asset(path))
        self.binary(PLOTLY, plotly_script())

    def page(self, path: str, template: str, *, title: str, crumbs: Sequence[Nav] = (), **context: Any) -> str:
        """Write a page; returns its path."""
        return self.text(path, self.pages.render(path, template, title=title, crumbs=crumbs, **context))

    def csv(self, name: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """Write rows as `data/NAME.csv`; returns the link, as tables and plots take it."""
        return {"CSV": self.text(f"data/{name}.csv", as_csv(columns, list(rows)))}

    def json(self, name: str, document: Any) -> dict[str, str]:
        """Write a document as `data/NAME.json`; returns the link, as tables and plots take it."""
        return {"JSON": self.text(f"data/{name}.json", json.dumps(document, indent=1, allow_nan=False) + "\n")}

    def text(self, path: str, content: str) -> str:
        """Write a text file; returns its path."""
        return self.binary(path, content.encode("utf-8", "replace"))

    def binary(self, path: str, content: bytes) -> str:
        """Write a file; returns its path. Raises UserError where it cannot be, ValueError for a path outside."""
        if posixpath.normpath(path) != path or path.startswith(("/", "..")):
            raise ValueError(f"{path}: no path within a site")
        target = self.folder / path
        try:
            if target.parent not in self._folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._folders.add(target.parent)
            target.write_bytes(content)
        except OSError as error:
            raise UserError(f"--out {self.folder}: {path} cannot be written ({error.strerror})") from None
        self.written[path] = len(content)
        return path

    @property
    def count(self) -> int:
        """How many pages there are."""
        return sum(path.endswith(".html") for path in self.written)

    def close(self) -> None:
        """Take away files of an earlier site that this one does not have, and name those of this one."""
        for old in set(self._before) - set(self.written):
            stale = self.folder / old
            if stale.resolve().is_relative_to(self.folder.resolve()):
                stale.unlink(missing_ok=True)
        self.text(MANIFEST, json.dumps({"files": sorted(self.written)}, indent=1) + "\n")


def embedded(value: Any) -> Markup:
    """A value as JSON inside a script element of a page: no text in it can end the element."""
    return htmlsafe_json_dumps(value, dumps=lambda v, **_: json.dumps(v, separators=(",", ":"), allow_nan=False))


def slug(text: str) -> str:
    """A file name or anchor that is safe everywhere and tells different texts apart; never that of an index page."""
    kept = _KEPT.sub("-", text.lower()).strip("-.")[:60]
    if kept == text and kept not in ("", "index"):
        return kept
    return f"{kept or 'x'}-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:8]}"


def asset(path: str) -> str:
    """The text of a stylesheet or script of the site."""
    return (resources.files("atrex.report.site") / path).read_text(encoding="utf-8")


def plotly_script() -> bytes:
    """Plotly's own script, from the installed package. Raises UserError where it is not installed."""
    found = importlib.util.find_spec("plotly")
    file = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if file is None or not file.is_file():
        raise UserError("pages draw their plots with plotly, which is not installed: pip install 'atrex[report]'")
    return file.read_bytes()


def relative(href: str, path: str) -> str:
    """How the page at `path` links to `href`, a path from the root with or without a fragment, or a web address.

    Whatever is not a web address is a path, so that a text with a scheme of its own in it runs nothing.
    """
    return _link(href, posixpath.dirname(path) or ".")


def _link(href: str, folder: str) -> str:
    if href.startswith(("https://", "http://")):
        return href
    target, mark, fragment = href.partition("#")
    there = _between(target, folder) if target else ""
    return f"{there}#{_quoted(fragment)}" if mark else there


@lru_cache(maxsize=100_000)
def _between(target: str, folder: str) -> str:
    return quote(posixpath.relpath(target, folder), safe="/._-~")


@lru_cache(maxsize=100_000)
def _quoted(fragment: str) -> str:
    return quote(fragment, safe="")


@pass_context
def _url(context: Any, href: str) -> str:
    return relative(href, context["path"])


@pass_context
def _body(context: Any, table: TableView) -> Markup:
    folder = posixpath.dirname(context["path"]) or "."
    return Markup(body(table, lambda href: _link(href, folder)))
