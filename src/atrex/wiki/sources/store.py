"""The index of an upstream: one SQLite file in the cache, with its symbols and what pins them."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.wiki.index import index_folder
from atrex.wiki.query import understand
from atrex.wiki.sources.symbols import Symbol, symbols_in
from atrex.wiki.sources.tree import Tree, digest, source_files
from atrex.wiki.vocabulary import nearest

_FIELDS = {"name": 6.0, "parts": 5.0, "doc": 2.0, "signature": 1.0, "path": 1.5}
_WEIGHTS = ", ".join(map(str, _FIELDS.values()))
# Kernels are what is looked for; a class or helper that says the same comes after.
_KIND = {"kernel": 1.5, "class": 1.1, "function": 1.0}
_DSL_FITS, _DSL_OTHER = 1.3, 0.6
_TEST = re.compile(r"(^|/)(tests?|benchmarks?|ci)/|(^|/)(test|bench)_")
_TEST_FACTOR = 0.5
_LOOKED_AT = 1000  # of the best by text: what comes after them is not going to be first


@dataclass(frozen=True)
class Place:
    """One symbol that answers: where it is, at which commit, and an address of these lines where there is one."""

    name: str
    kind: str
    dsl: str | None
    path: str
    start: int
    end: int
    doc: str
    score: float
    url: str | None


def folder() -> Path:
    """Where the indexes of upstreams are kept."""
    return index_folder() / "sources"


def add(tree: Tree, progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Index a tree and return what is kept about it. Raises UserError when there is nothing to index."""
    files = source_files(tree)
    if not files:
        raise UserError(f"{tree.root}: no Python, CUDA, HIP or C++ file in it")
    symbols: list[Symbol] = []
    for number, path in enumerate(files, 1):
        symbols += symbols_in(path.relative_to(tree.root).as_posix(), path.read_bytes())
        progress(number, len(files))
    kernels: dict[str, int] = {}
    for symbol in symbols:
        if symbol.kind == "kernel":
            kernels[symbol.dsl or "unknown"] = kernels.get(symbol.dsl or "unknown", 0) + 1
    about = {
        "name": tree.name, "url": tree.url, "commit": tree.commit, "dirty": tree.dirty, "licence": tree.licence,
        "licence_file": tree.licence_file, "root": str(tree.root), "files": len(files), "symbols": len(symbols),
        "kernels": dict(sorted(kernels.items())), "digest": None if tree.commit and not tree.dirty else digest(files),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    folder().mkdir(parents=True, exist_ok=True)
    target = folder() / f"{tree.name}.sqlite"
    fresh = target.with_suffix(f".new-{os.getpid()}")
    try:
        _write(fresh, symbols, about)
        os.replace(fresh, target)
    finally:
        fresh.unlink(missing_ok=True)
    return about


def _write(path: Path, symbols: list[Symbol], about: dict[str, Any]) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE about(json TEXT)")
    connection.execute("INSERT INTO about VALUES(?)", (json.dumps(about),))
    connection.execute("CREATE TABLE symbol(json TEXT)")
    connection.execute(f"CREATE VIRTUAL TABLE text USING fts5({', '.join(_FIELDS)}, tokenize='porter unicode61')")
    for row, symbol in enumerate(symbols, 1):
        connection.execute("INSERT INTO symbol(rowid, json) VALUES(?, ?)", (row, json.dumps(asdict(symbol))))
        values = (symbol.name, parts(symbol.name), symbol.doc, symbol.signature, parts(symbol.path))
        connection.execute(
            "INSERT INTO text(rowid, name, parts, doc, signature, path) VALUES(?,?,?,?,?,?)", (row, *values)
        )
    connection.commit()
    connection.close()


def parts(name: str) -> str:
    """The words of an identifier or path: RmsNormKernel and rms_norm_kernel alike."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return " ".join(re.findall(r"[A-Za-z0-9]+", spaced)).lower()


def known() -> list[dict[str, Any]]:
    """What is kept about every upstream that was added."""
    found = []
    for path in sorted(folder().glob("*.sqlite")):
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        found.append(json.loads(connection.execute("SELECT json FROM about").fetchone()[0]))
        connection.close()
    return found


def search(name: str, question: str, k: int, dsl: str | None = None) -> tuple[dict[str, Any], list[Place]]:
    """What is kept about an added upstream, and the `k` symbols of it that answer a question best.

    `dsl` leaves kernels of that DSL alone. Raises UserError for one that was not added.
    """
    path = folder() / f"{name}.sqlite"
    if not path.is_file():
        names = [about["name"] for about in known()]
        hint = nearest(name, names) or (f": added are {', '.join(names)}" if names else "")
        raise UserError(f"--source {name}: not added{hint}; atrex wiki add-source PATH|GIT_URL adds one")
    query = understand(question)
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        about = json.loads(connection.execute("SELECT json FROM about").fetchone()[0])
        scores: dict[int, float] = {}
        for concept in query.concepts:
            best: dict[int, float] = {}
            for phrase, weight in concept.phrases.items():
                rows = connection.execute(
                    f"SELECT rowid, bm25(text, {_WEIGHTS}) FROM text WHERE text MATCH ?", (f'"{phrase}"',)
                )
                for row, negative in rows:
                    best[row] = max(best.get(row, 0.0), weight * -negative)
            for row, score in best.items():
                scores[row] = scores.get(row, 0.0) + concept.weight * score
        wanted = {dsl} if dsl else query.dsl
        ranked = []
        for row, score in sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))[:_LOOKED_AT]:
            symbol = json.loads(connection.execute("SELECT json FROM symbol WHERE rowid = ?", (row,)).fetchone()[0])
            if dsl and symbol["dsl"] != dsl:
                continue
            fit = (_DSL_FITS if symbol["dsl"] in wanted else _DSL_OTHER) if wanted and symbol["dsl"] else 1.0
            fit *= _TEST_FACTOR if _TEST.search(symbol["path"]) else 1.0
            ranked.append((score * _KIND[symbol["kind"]] * fit, symbol))
    finally:
        connection.close()
    ranked.sort(key=lambda entry: (-entry[0], entry[1]["path"], entry[1]["start"]))
    places = []
    for score, symbol in ranked[:k]:
        shown = {field: symbol[field] for field in ("name", "kind", "dsl", "path", "start", "end", "doc")}
        places.append(Place(**shown, score=round(score, 4), url=_address(about, symbol)))
    return about, places


def _address(about: dict[str, Any], symbol: dict[str, Any]) -> str | None:
    """An address of the lines at the commit, for GitHub and what serves files as it does."""
    url = about["url"] or ""
    if not about["commit"] or about["dirty"] or not url.startswith("https://"):
        return None
    return f"{url.removesuffix('.git')}/blob/{about['commit']}/{symbol['path']}#L{symbol['start']}-L{symbol['end']}"
