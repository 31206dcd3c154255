"""The one error type that a user can fix; the command line prints it as a single line, without a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """Bad input. The message is one line that names the file or argument, the field, and what was expected."""


def first_fault(error: ValidationError, whole: str = "document") -> str:
    """The first thing that is wrong with a document, as "field: what"; `whole` names one that is wrong as a whole."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"
