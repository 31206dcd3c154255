"""A process that dies while it writes."""

from __future__ import annotations


class Killed(BaseException):
    """What a kill looks like from inside."""


class Writes:
    """Stands for a function that writes text to a path: counts the calls, dies before or after the `kill_at`-th."""

    def __init__(self, write, before: bool = True):
        self.write, self.before = write, before
        self.count, self.kill_at = 0, None

    def __call__(self, path, text):
        self.count += 1
        if self.before and self.count == self.kill_at:
            raise Killed
        self.write(path, text)
        if self.count == self.kill_at:
            raise Killed
