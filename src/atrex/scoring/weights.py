"""Importance weights: the published ones, and a user's own for re-weighting a finished run."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from atrex.errors import UserError


@dataclass(frozen=True)
class Weights:
    """`values`: operator -> weight, summing to 1. `source` says where they come from, `notes` what was done to them."""

    values: dict[str, float]
    source: str
    notes: list[str] = field(default_factory=list)


def published_weights() -> Weights:
    """The importance weights of the shipped suite, all published operators, normalized (their scores sum to 1.09)."""
    document = json.loads((resources.files("atrex") / "suite" / "weights.json").read_text(encoding="utf-8"))
    return Weights(normalize(document["importance"]), "published")


def normalize(values: Mapping[str, float]) -> dict[str, float]:
    """The weights scaled to sum to 1. Raises ValueError if their sum is not positive."""
    total = math.fsum(values.values())
    if not total > 0:
        raise ValueError("weights: expected at least one over 0")
    return {name: value / total for name, value in values.items()}


def read_weights(path: Path, known: Collection[str]) -> Weights:
    """Read a JSON object {operator: weight} and scale it to sum to 1; an operator it leaves out weighs 0.

    Raises UserError, naming file and field, if the file is missing or not such an object, if an operator is not in
    `known` or stands twice, or if a weight is not a finite number of at least 0 (all 0 included).
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=lambda p: _unique(path, p))
    except OSError as e:
        raise UserError(f"{path}: cannot be read ({e.strerror}), expected a JSON file of weights") from None
    except ValueError as e:
        raise UserError(f"{path}: not JSON ({e})") from None
    if not isinstance(document, dict) or not document:
        raise UserError(f"{path}: expected a JSON object {{operator: weight}}")
    for name, value in document.items():
        if name not in known:
            raise UserError(f"{path}: {name}: unknown operator, expected one of the suite's {len(known)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise UserError(f"{path}: {name}: weight {json.dumps(value)}, expected a finite number of at least 0")
    total = math.fsum(document.values())
    if not 0 < total < math.inf:
        raise UserError(f"{path}: the weights sum to {total:g}, expected a finite sum over 0")
    notes = [] if abs(total - 1) <= 1e-9 else [f"{path.name}: weights sum to {total:.6g}, normalized to 1"]
    if absent := len(set(known) - set(document)):
        notes.append(f"{path.name}: {absent} of {len(known)} operators not named, weight 0")
    return Weights(normalize(document), str(path), notes)


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise UserError(f"{path}: {name}: stands twice, expected one weight an operator")
        document[name] = value
    return document
