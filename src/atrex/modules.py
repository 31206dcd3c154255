"""Registries that fill themselves: a package whose modules register what they define."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_all(package: str) -> None:
    """Import every module directly in a package, in order of name, once."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
