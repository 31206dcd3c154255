"""What a request asks for, held against the service's limits: a body in, units under terms of their own out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atrex.errors import UserError
from atrex.evaluate.budgets import CPU_LIMIT, Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.engine import Terms, UnitName
from atrex.evaluate.plan import make_plan
from atrex.evaluate.seeds import Seeds
from atrex.problems.model import Suite

_SHAPES = re.compile(r"[\w,\- ]{1,1000}")
_LARGEST_ID = 9999  # a range beyond it would be written out before anything else is checked


@dataclass(frozen=True)
class Limits:
    """Of one request: `source` bytes of candidate, `units`, `seeds`, `seconds` of judging; of all, how many wait."""

    source: int = 256 << 10
    units: int = 64
    seeds: int = 20
    seconds: float = 600.0
    queue: int = 64

    @property
    def body(self) -> int:
        """Bytes of a request's body: JSON may need six for one of the source."""
        return 6 * self.source + (64 << 10)


class Refused(Exception):
    """A request that is answered with one line: `status` is HTTP's."""

    def __init__(self, status: int, line: str):
        super().__init__(line)
        self.status, self.line = status, line


class Ask(BaseModel):
    """The body of a request. The words are those of `atrex eval`, and so are the defaults."""

    model_config = ConfigDict(extra="forbid", strict=True)

    candidate: str
    """The source text."""
    problem: str
    shapes: str | list[str | int] | None = None
    seeds: int = Field(default=5, ge=1)
    dsl: str | None = None
    held_out: bool = True
    readiness: bool = True
    quick: bool = False


@dataclass(frozen=True)
class Order:
    """The units of one request, and terms with a secret that no other request has."""

    units: list[UnitName]
    terms: Terms


def read_order(body: bytes, suite: Suite, device_type: str, limits: Limits, budgets: Budgets, terms: Terms) -> Order:
    """The order in a request's body; `terms` says what is the same for all requests. Raises Refused (413 or 422)."""
    try:
        ask = Ask.model_validate_json(body)
        source = ask.candidate.encode()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = str(first["loc"][0]) if first["loc"] else "body"
        raise Refused(422, f"{where}: {first['msg']}") from None
    except UnicodeEncodeError:
        raise Refused(422, "candidate: not Unicode text that can be encoded as UTF-8") from None
    if len(source) > limits.source:
        raise Refused(413, f"candidate: {len(source)} bytes; at most {limits.source} are taken")
    if ask.seeds > limits.seeds:
        raise Refused(422, f"seeds: {ask.seeds}; at most {limits.seeds} are drawn")
    try:
        problem = suite.problem(ask.problem)
        # set_name differs from name, as in a directory: a file that cannot be a candidate becomes failed units
        path = Path(f"{problem.operator}.py")
        candidate = Candidate(path, str(path), "request", problem.operator, ask.candidate)
        limit = CPU_LIMIT if device_type == "cpu" else None
        held_out = ask.held_out and not ask.quick
        plan = make_plan(suite, [candidate], _shapes(ask), ask.dsl, device_type, held_out, ask.quick, limit)
    except UserError as error:
        raise Refused(422, str(error)) from None
    if len(plan.units) > limits.units:
        raise Refused(422, f"shapes: {len(plan.units)} units; at most {limits.units} are judged, name fewer shapes")
    own = replace(
        terms,
        secret=Seeds().secret,
        seed_count=1 if ask.quick else ask.seeds,
        timed_calls=Budgets.MIN_CALLS if ask.quick else None,
        readiness=ask.readiness and not ask.quick,
        budgets=budgets,
    )
    return Order([UnitName.of(unit) for unit in plan.units], own)


def _shapes(ask: Ask) -> str | None:
    text = ask.shapes if ask.shapes is None or isinstance(ask.shapes, str) else ",".join(map(str, ask.shapes))
    if text is None:
        return None
    if not _SHAPES.fullmatch(text) or any(int(n) > _LARGEST_ID for n in re.findall(r"\d+", text)):
        raise Refused(422, 'shapes: expected ids such as "0,3-5" or a list of ids')
    return text
