"""The prompt: one template for the task, a primer per DSL, what the DSL allows; versioned by the hash of all three."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from atrex.dsls.base import get
from atrex.generate.target import Target
from atrex.problems.model import Problem

OUTPUT = "candidate.py"
_TASK = "task.md.j2"


@dataclass(frozen=True)
class Prompt:
    """`text` is what the agent is told about one problem; `sha256` is of what all problems of a DSL have in common."""

    text: str
    sha256: str


def prompt(problem: Problem, dsl: str, target: Target) -> Prompt:
    """The prompt for one problem, DSL and target chip. Raises UserError for an unknown DSL."""
    about = problem.metadata
    text = render(
        _read(_TASK),
        operator=problem.operator,
        dsl=dsl,
        constraints=get(dsl).constraints,
        primer=primer(dsl),
        target=target,
        output=OUTPUT,
        mutates=list(about.mutates),
        constant=list(about.constant),
        shapes=len(problem.shapes),
    )
    return Prompt(text, template_hash(dsl))


def primer(dsl: str) -> str:
    """A DSL in short."""
    return _read(f"{dsl}.md")


def render(template: str, **values: Any) -> str:
    """A template of ours with values put in; a value that is missing is an error."""
    return _environment().from_string(template).render(**values)


def template_hash(dsl: str) -> str:
    """Identifies what candidates of a DSL were asked for, whatever the problem."""
    parts = [_read(_TASK), primer(dsl), get(dsl).constraints]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@cache
def _environment() -> Environment:
    return Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)


def _read(name: str) -> str:
    return files("atrex.generate").joinpath("prompts", name).read_text(encoding="utf-8")
