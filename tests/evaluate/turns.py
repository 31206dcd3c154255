"""A lease that can be looked at."""

import contextlib

from atrex.evaluate.lease import Alone


class Turns(Alone):
    """A lease that writes down what it is asked for, and refuses to be nested."""

    crowded = True

    def __init__(self):
        self.taken, self.held = [], None
        self.rooms = []  # whether each unit had the device's memory alone

    @contextlib.contextmanager
    def _turn(self, kind):
        assert self.held is None, f"{kind} within {self.taken[-1]}"
        self.held = kind
        self.taken.append(kind)
        try:
            yield
        finally:
            self.held = None

    def shared(self):
        return self._turn("shared")

    def exclusive(self):
        return self._turn("exclusive")

    def room(self, alone=False):
        self.rooms.append(alone)
        return contextlib.nullcontext()
