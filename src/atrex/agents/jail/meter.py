"""How many tokens an answer of a model's service tells of, read from its bytes as they pass.

Both the Messages and the Responses API put a `usage` into the whole answer or into events of its stream; later ones
hold totals so far (docs.anthropic.com/en/api/messages-streaming and
platform.openai.com/docs/api-reference/responses-streaming).
"""

from __future__ import annotations

import json
from typing import Any

_LONGEST = 8 << 20  # bytes of a line, or of a whole answer, that is looked into
# Anthropic counts what was read from a cache and written to it beside `input_tokens`, OpenAI within.
_COUNTED = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class Meter:
    """Fed with the bytes of one answer; `tokens` is in and out together, None while none were told.

    A stream of events is looked at line by line, another answer at its end.
    """

    def __init__(self, streamed: bool) -> None:
        self._streamed = streamed
        self._line = bytearray()
        self._counts: dict[str, int] = {}
        self._lost = False

    @property
    def tokens(self) -> int | None:
        return sum(self._counts.values()) if self._counts else None

    def feed(self, data: bytes) -> None:
        *whole, last = data.split(b"\n") if self._streamed else [data]
        for piece in whole:
            self._add(piece)
            self._look()
        self._add(last)

    def end(self) -> None:
        self._look()

    def _add(self, piece: bytes) -> None:
        self._lost |= len(self._line) + len(piece) > _LONGEST
        if not self._lost:
            self._line += piece

    def _look(self) -> None:
        line, lost = bytes(self._line).strip().removeprefix(b"data:"), self._lost
        self._line.clear()
        self._lost = False
        if lost or b'"usage"' not in line:
            return
        try:
            told = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(told, dict):
            for place in (told, told.get("message"), told.get("response")):
                self._take(place)

    def _take(self, place: Any) -> None:
        usage = place.get("usage") if isinstance(place, dict) else None
        for name in _COUNTED if isinstance(usage, dict) else ():
            if isinstance(usage.get(name), int):
                self._counts[name] = usage[name]
