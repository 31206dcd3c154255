"""The search index: one SQLite file with a full-text table over the fields of every card.

It is built on first use and again whenever a card or a data file has changed; searching then reads no card.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable
from pathlib import Path

from atrex.hardware.cache import calibration_cache_dir
from atrex.hardware.chip import CHIPS
from atrex.wiki.vocabulary import DATA

# Columns of the full-text table with what a hit in them weighs. `joined` holds compounds without their joints
# (rms_norm as rmsnorm), so that both spellings meet.
FIELDS = {
    "id": 5.0, "title": 6.0, "words": 5.0, "operators": 4.0, "claim": 3.0, "counters": 2.0, "body": 1.0, "code": 0.6,
    "joined": 1.0,
}  # fmt: skip
_JOINT = re.compile(r"[A-Za-z0-9]+(?:[-_.][A-Za-z0-9]+)+")
_FENCE = re.compile(r"^```.*?^```[^\S\n]*$", re.M | re.S)


def index_folder() -> Path:
    """Where indexes are kept: below $ATREX_CACHE_DIR, else the user's cache."""
    return calibration_cache_dir() / "wiki"


def open_index(cards: Path) -> sqlite3.Connection:
    """The index of the cards below a folder, built if it is not there or not of these files.

    Raises UserError when there is no such folder or a card in it cannot be read.
    """
    place = hashlib.sha256(str(cards.resolve()).encode()).hexdigest()[:8]
    path = index_folder() / f"cards-{place}-{_state(cards)}.sqlite"
    if path.is_file():
        return _connect(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, suffix=".sqlite")
        os.close(handle)
    except OSError:  # no cache to write to: the index lives as long as the process
        connection = sqlite3.connect(":memory:")
        _build(connection, cards)
        return connection
    try:
        connection = sqlite3.connect(name)
        _build(connection, cards)
        connection.close()
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    for old in path.parent.glob(f"cards-{place}-*.sqlite"):
        if old != path:
            old.unlink(missing_ok=True)
    return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)


def _state(cards: Path) -> str:
    """A digest of the names, sizes and times of everything that the index is made of."""
    code = Path(__file__).parent.glob("*.py")
    files = [*cards.glob("*/*.md"), *DATA.rglob("*.yaml"), *CHIPS.glob("*.json"), *code]
    digest = hashlib.sha256()
    for path in sorted(files):
        about = path.stat()
        digest.update(f"{path} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()[:20]


def _build(connection: sqlite3.Connection, folder: Path) -> None:
    from atrex.wiki.load import load_wiki

    wiki = load_wiki(folder)
    connection.execute("CREATE TABLE card(id TEXT PRIMARY KEY, about TEXT NOT NULL)")
    connection.execute(
        f"CREATE VIRTUAL TABLE text USING fts5({', '.join(FIELDS)}, tokenize='porter unicode61 remove_diacritics 2')"
    )
    connection.execute("CREATE TABLE edge(card TEXT, other TEXT)")
    for rowid, card in enumerate(wiki, 1):
        about = {
            "id": card.id, "kind": card.kind.value, "title": card.title, "vendor": card.vendor, "arch": card.arch,
            "dsl": card.dsl, "operators": card.operators, "claim": card.statement.claim if card.statement else "",
            "verified": [verification.level for verification in card.verified],
        }  # fmt: skip
        connection.execute("INSERT INTO card(rowid, id, about) VALUES(?, ?, ?)", (rowid, card.id, json.dumps(about)))
        code = "\n".join(_FENCE.findall(card.body))
        columns = {
            "id": card.id.replace("-", " "),
            "title": card.title,
            "words": " ; ".join(card.words),
            "operators": " ".join(name for name in card.operators if name != "any"),
            "claim": about["claim"],
            "counters": " ".join(symptom.counter for symptom in card.symptoms),
            "body": _FENCE.sub("", card.body),
            "code": code,
        }
        columns["joined"] = " ".join(joined(" ".join([*columns.values(), *card.arch, *card.dsl])))
        names = ", ".join(columns)
        marks = ", ".join("?" * len(columns))
        connection.execute(f"INSERT INTO text(rowid, {names}) VALUES({rowid}, {marks})", tuple(columns.values()))
        edges = [(card.id, edge.other) for edge in wiki.related(card.id)]
        connection.executemany("INSERT INTO edge VALUES(?, ?)", edges)
    connection.commit()


def joined(text: str) -> list[str]:
    """The compounds of a text without their joints: split-KV as splitkv, rms_norm as rmsnorm."""
    return [re.sub(r"[-_.]", "", compound) for compound in _unique(_JOINT.findall(text))]


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.lower() for name in names))
