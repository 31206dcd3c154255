"""The supervisor's handle on the measuring program in a jail."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atrex.agents.jail import Jail
from atrex.hardware import native
from atrex.hardware.cache import cache_sizes, usable_cpus

_PROGRAM = Path(__file__).with_name("measure.py")
_START_WITHIN = 120.0
_SWEEP = 64 << 20  # bytes, where the size of the last cache is not known
_SLACK = 10.0  # seconds that an answer may come after its order's limit


class Died(Exception):
    """The measuring program ended, or does not answer. One line."""


def readable(device: str) -> list[str]:
    """What the program reads beside its workspace: on the CPU, the library that evicts caches. Raises UserError."""
    return [] if device == "cuda" else [str(native.build())]


class Bench:
    """Starts the program in the jail's workspace, and asks it. A context manager; the jail has to be free."""

    def __init__(self, jail: Jail, device: str, deadline: float):
        self._jail, self._deadline = jail, deadline
        program = jail.home / "measure.py"
        program.unlink(missing_ok=True)
        program.write_text(_PROGRAM.read_text(encoding="utf-8"), encoding="utf-8")
        self._argv = [sys.executable, str(program), device, *readable(device)]
        if device != "cuda":
            sweep = 0 if native.atrex_flush_supported() else 2 * (cache_sizes().get("llc") or _SWEEP)
            self._argv.append(str(sweep))
        self._lines: Iterator[tuple[str, str]] = iter(())
        self.said: list[str] = []  # what came beside answers
        self.about: dict[str, Any] = {}

    def __enter__(self) -> Bench:
        env = {"OMP_NUM_THREADS": str(usable_cpus()), "OMP_PROC_BIND": "true", "PYTHONDONTWRITEBYTECODE": "1"}
        self._jail.start(self._argv, env, talk=True)
        try:
            self.about = self._answer(_START_WITHIN)
        except BaseException:
            self._jail.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._jail.stop()

    def ask(self, do: str, limit: float, **order: Any) -> dict[str, Any]:
        """What the program answers within `limit` seconds: `failed` and `reason` where the order came to nothing.

        Raises Died, and TimeoutError at the deadline.
        """
        data = json.dumps({"do": do, "limit": limit} | order).encode() + b"\n"
        try:
            self._jail.send(data, self._deadline)
        except BrokenPipeError:
            raise Died(self._why()) from None
        return self._answer(limit + _SLACK)

    def _answer(self, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        try:
            for stream, line in self._jail.lines(min(until, self._deadline)):
                if stream == "out":
                    return json.loads(line)
                self.said.append(line)
        except TimeoutError:
            if time.monotonic() >= self._deadline:
                raise
            raise Died(f"it did not answer within {seconds:.0f} s") from None
        except ValueError:
            raise Died("it answered with no JSON") from None
        raise Died(self._why())

    def _why(self) -> str:
        status = self._jail.wait()
        return f"it {self._jail.excess}" if self._jail.excess else f"exit status {status}"
