"""Transcripts: one JSON line per event, with the seconds since the problem began; secrets never reach them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from atrex.agents.events import Event
from atrex.errors import UserError

HIDDEN = "[secret]"
_FEWEST = 6  # characters: shorter ones are no secret, and would be found everywhere
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


class Redactor:
    """Takes secrets out of text, also where they stand inside longer words or JSON strings."""

    def __init__(self, secrets: Sequence[str]):
        forms = {form for s in secrets if len(s) >= _FEWEST for form in (s, json.dumps(s)[1:-1])}
        self._forms = sorted(forms, key=len, reverse=True)

    def clean(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def found(self, text: str) -> bool:
        return any(form in text for form in self._forms)


class Transcript:
    """Appends events to a file. A context manager."""

    def __init__(self, path: Path, redactor: Redactor):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace")
        self._redactor, self._began = redactor, time.monotonic()

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, event: Event) -> None:
        line = {"t": round(time.monotonic() - self._began, 3)} | event.model_dump(mode="json")
        self._file.write(self._redactor.clean(json.dumps(line, ensure_ascii=False)) + "\n")
        self._file.flush()


def read(path: Path) -> Iterator[tuple[float, Event]]:
    """(seconds, event) of a transcript. Raises UserError naming the file and line of what is no event."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            data = json.loads(line)
            yield data.pop("t"), _EVENT.validate_python(data)
        except (ValueError, KeyError) as error:
            raise UserError(f"{path}:{number}: not an event of a transcript ({str(error).splitlines()[0]})") from None
