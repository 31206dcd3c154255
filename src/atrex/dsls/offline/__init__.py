"""Compiling without a device: what a DSL is told about the target, and where it writes what it compiled."""

from atrex.dsls.offline.attempts import Attempt, Attempts, Undetermined
from atrex.dsls.offline.target import Target, parse_target

__all__ = ["Attempt", "Attempts", "Target", "Undetermined", "parse_target"]
