"""Events out of damaged Kineto text: skip to the next event, mend the defects that writers are known to leave.

Known defects: unescaped quotes in Python function names (pytorch #113001, #146900), control characters (#136180),
Windows backslashes (#98432), NaN and Infinity as numbers in old ROCm and CUPTI metadata, files cut by a killed
server.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

if TYPE_CHECKING:
    from atrex.traces.readers.kineto_decode import Batch

BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*["}])')
_RAWS = msgspec.json.Decoder(list[Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f]")
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NOT_A_NUMBER = re.compile(rb"([:\[,]\s*)[-+]?(?:nan(?:\([^)]*\))?|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_STRING_VALUE = re.compile(rb'("[^"\\]*"\s*:\s*")(.*?)("(?=\s*(?:,\s*"[^"]*"\s*:|\})))', re.DOTALL)
_UNESCAPED = re.compile(rb'(?<!\\)"')
MAX_JOINED = 8
EXAMPLES = 3


def salvage(piece: bytes, batch: Batch) -> list[bytes]:
    """The texts of the events in a piece that does not decode as it stands.

    Counts repaired and lost events in `batch`, and puts what follows the end of the event array into `batch.tail`.
    """
    starts = [0, *(m.end() for m in BOUNDARY.finditer(piece))]
    ends = [*(m.start() + 1 for m in BOUNDARY.finditer(piece)), len(piece)]
    found: list[bytes] = []
    i, span = 0, len(starts)
    while i < len(starts):
        span = min(span, len(starts) - i)
        events = _try(piece[starts[i] : ends[i + span - 1]])
        if events is not None:
            found += events
            i += span
            span *= 2
        elif span > 1:
            span //= 2
        else:
            i = _damaged(piece, starts, ends, i, found, batch)
            if batch.tail is not None:
                break
    return [text for text in found if text.strip() != b"{}"]


def _try(text: bytes) -> list[bytes] | None:
    try:
        return [bytes(raw) for raw in _RAWS.decode(b"[" + text + b"]")]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _damaged(piece: bytes, starts: list[int], ends: list[int], i: int, found: list[bytes], batch: Batch) -> int:
    """Deal with the text between two boundaries that is no event; returns the index to go on from."""
    text = piece[starts[i] : ends[i]]
    rest = text.lstrip(b" \t\r\n,")
    if rest.startswith(b"]"):
        batch.tail = piece[len(piece) - (len(piece) - starts[i]) + len(text) - len(rest) :]
        return len(starts)
    if not rest:
        return i + 1
    stop = _balanced(text)
    if stop is not None:
        events = _try(text[:stop])
        if events is not None:
            found += events
            after = text[stop:].lstrip(b" \t\r\n,")
            if after.startswith(b"]"):
                batch.tail = piece[starts[i] + stop :].lstrip(b" \t\r\n,")
                return len(starts)
            if after:
                _lose(after, batch)
            return i + 1
    for joined in range(2, MAX_JOINED + 1):
        if i + joined > len(starts):
            break
        events = _try(piece[starts[i] : ends[i + joined - 1]])
        if events is not None and len(events) == 1:
            found += events
            return i + joined
    # The last event of the array carries the array's end and whatever follows it.
    closing = re.search(rb"\}\s*\]\s*(?=[,}]|$)", text)
    candidates = (
        [(text, None)] if closing is None else [(text[: closing.start() + 1], closing.start() + 1), (text, None)]
    )
    for candidate, stop in candidates:
        mended = repair(candidate)
        if mended is not None:
            found.append(mended)
            batch.repaired += 1
            if stop is not None:
                batch.tail = piece[starts[i] + stop :].lstrip(b" \t\r\n,")
            return i + 1
    _lose(text, batch)
    return i + 1


def _lose(text: bytes, batch: Batch) -> None:
    batch.lost += 1
    batch.lost_bytes += len(text)
    if len(batch.examples) < EXAMPLES:
        batch.examples.append(" ".join(text[:120].decode("utf-8", "replace").split()))


def _balanced(text: bytes) -> int | None:
    """Where the object that `text` begins with ends, if its brackets balance outside strings."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in (b"{", b"["):
            depth += 1
        elif token[0] in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return token.end()
            if depth < 0:
                return None
    return None


def repair(text: bytes) -> bytes | None:
    """An event's text with its known defects mended, or None if it still is no event."""
    text = _CONTROL.sub(b" ", text.decode("utf-8", "replace").encode())
    text = _BAD_ESCAPE.sub(rb"\\\\", text)
    text = _NOT_A_NUMBER.sub(rb"\1null", text)
    for candidate in (text, _STRING_VALUE.sub(_escape, text)):
        events = _try(candidate)
        if events is not None and len(events) == 1 and _is_event(events[0]):
            return events[0]
    return None


def _is_event(text: bytes) -> bool:
    try:
        keys = _OBJECT.decode(text).keys()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return keys >= {"ph", "name"} and (keys >= {"ts", "cat"} or b'"X"' not in text)


def _escape(found: re.Match[bytes]) -> bytes:
    return found[1] + _UNESCAPED.sub(rb'\\"', found[2]) + found[3]
