"""The record of one problem that an agent was given, and of the run that gave it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from atrex.agents.events import Usage
from atrex.errors import UserError, first_fault

ABOUT, RECORDS = "generate.json", "generated.jsonl"
COMPARED = ("dsl", "arch", "device", "chip", "policy", "prompt_sha256", "suite_version", "suite_hash")
"""What two runs must have in common for their candidates to be comparable."""


class Generated(BaseModel):
    """One problem and sample: who worked on it, what it took, how it ended. Times in seconds, cost in US dollars.

    `candidate_sha256` is None when no candidate was left; `reason` says why. `tools` are the ones the agent says it
    had, None when it does not say. `usage` None: nothing was told, which is not zero. `service_tokens` is what the
    model's service told the supervisor, in and out, with every answer into the jail: more than `usage` where a command
    of the agent's asked by itself; None where no service is asked from the jail. `confinement` is what held it.
    """

    model_config = ConfigDict(extra="forbid")

    operator: str
    sample: int
    agent: str
    model: str | None
    models: list[str]
    dsl: str
    prompt_sha256: str
    policy: str
    tools: list[str] | None
    confinement: dict[str, Any] | None
    usage: Usage | None
    service_tokens: int | None = None
    cost_usd: float | None
    seconds: float
    turns: int
    tool_calls: int
    attempts: int
    refused_hosts: list[str]
    ended: Literal["done", "budget", "timeout", "error", "provider"]
    reason: str | None
    candidate_sha256: str | None


class About(BaseModel):
    """`generate.json`: what all problems of a run share. Sets are comparable where all but agent and model agree."""

    model_config = ConfigDict(extra="forbid")

    agent: str
    model: str | None
    base_url: str | None = None
    dsl: str
    arch: str
    device: str
    chip: str
    policy: str
    prompt_sha256: str
    suite_version: str
    suite_hash: str
    samples: int
    operators: list[str]
    budget: dict[str, float | int | None]
    seen: str | None = None
    created: str
    atrex: str

    def differs(self, other: About) -> list[str]:
        """The fields in which two runs differ beside agent, model and what was asked of them: not comparable then."""
        return [name for name in COMPARED if getattr(self, name) != getattr(other, name)]


def load_about(folder: Path) -> About:
    """Raises UserError for a folder that no run of `atrex generate` has written, or that was changed since."""
    path = folder / ABOUT
    try:
        return About.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: no {ABOUT}; expected a folder that atrex generate has written") from None
    except ValidationError as error:
        raise UserError(f"{path}: {first_fault(error)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: {error}") from None


def load_records(folder: Path) -> list[Generated]:
    """The last record of every problem and sample. A line that was cut off at the end is left out. Raises UserError."""
    path = folder / RECORDS
    found: dict[tuple[str, int], Generated] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = Generated.model_validate_json(line)
        except ValidationError as error:
            if number == len(lines) and not _is_json(line):
                break
            raise UserError(f"{path}:{number}: {first_fault(error)}") from None
        found[record.operator, record.sample] = record
    return list(found.values())


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
