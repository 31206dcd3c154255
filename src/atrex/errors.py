"""The one error type that a user can fix; the command line prints it as a single line, without a traceback."""

from __future__ import annotations


class UserError(Exception):
    """Bad input. The message is one line that names the file or argument, the field, and what was expected."""
