"""What the readers of SQLite databases share: read-only opening, columns as arrays."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from atrex.errors import UserError


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection that leaves no journal beside the file. A damaged file raises UserError."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        yield connection
    except sqlite3.DatabaseError as error:
        raise UserError(f"{path}: the database is damaged or cut short: {error}") from None
    finally:
        connection.close()


def columns(connection: sqlite3.Connection, query: str, names: Sequence[str]) -> dict[str, list]:
    """The result of a query by column; `names` are the columns in order."""
    rows = connection.execute(query).fetchall()
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)) if rows else {name: [] for name in names}


def integers(values: Sequence[int | None]) -> np.ndarray:
    """int64 with -1 for NULL."""
    return np.array([-1 if v is None else v for v in values], dtype=np.int64)


def has_rows(connection: sqlite3.Connection, table: str) -> bool:
    return connection.execute(f'SELECT 1 FROM "{table}" LIMIT 1').fetchone() is not None
