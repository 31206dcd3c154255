"""A lab whose kernels say what they are: `speed`, `wrong`, `share`, `artifact`. Times have a little noise."""

from __future__ import annotations

import hashlib
import math
import random
import re
from contextlib import contextmanager

from atrex.optimize.lab import UnitFailed
from atrex.scoring.records import Artifact, Compile
from tests.scoring.synthetic import failed, unit

BASE_US = {"0": 20.0, "1": 80.0}


def kernel(speed: float = 1.0, **more) -> str:
    says = {"speed": speed} | more
    return "".join(f"# {name}={value}\n" for name, value in says.items()) + "class Model: pass\n"


class SayingLab:
    """Judges by what the source says. `calls` counts what was asked of it; `contests` are the pairs that were set."""

    seconds = until = None

    def __init__(self, seed: int = 0, noise: float = 0.01):
        self.rng, self.noise = random.Random(seed), noise
        self.calls: list[str] = []
        self.incumbent_fails = 0  # so many rounds of the next ones
        self.disturbed = 0.0  # standard deviation of the log of what a whole round is slowed down by

    def judge(self, source):
        text = source.read_text()
        self.calls.append("judge")
        if self._says(text, "wrong", ""):
            return [failed("runtime", "numeric_mismatch", shape="0")]
        artifact = self._says(text, "artifact", hashlib.sha256(text.encode()).hexdigest())
        compiled = Compile(seconds=1.0, artifacts=[Artifact(name="k", kind="so", sha256=artifact, bytes=1)])
        share = float(self._says(text, "share", "1.0"))
        return [
            unit(shape=shape, s=0.1 * self._speed(text), share=share, compile=compiled, dsl="cpp") for shape in BASE_US
        ]

    @contextmanager
    def contest(self, incumbent, candidate):
        self.calls.append("contest")
        with self._pair(incumbent, candidate) as measure:
            yield measure

    @contextmanager
    def heat(self, incumbent, candidate):
        self.calls.append("heat")
        with self._pair(incumbent, candidate) as measure:
            yield measure

    @contextmanager
    def _pair(self, incumbent, candidate):
        a, b = incumbent.read_text(), candidate.read_text()

        def measure(shapes=None):
            if self._says(b, "flaky", ""):
                raise UnitFailed(failed("runtime", "integrity", shape="1"), True)
            if self.incumbent_fails:
                self.incumbent_fails -= 1
                raise UnitFailed(failed("runtime", "integrity", shape="1"), False)
            found = {}
            slowed = math.exp(self.rng.gauss(0, self.disturbed))
            for shape, us in BASE_US.items():
                us *= slowed
                if shapes is None or shape in shapes:
                    slow = float(self._says(b, f"slow{shape}", "1"))
                    found[shape] = (self._noisy(us / self._speed(a)), self._noisy(us * slow / self._speed(b)))
            return found

        yield measure

    def look(self, source, shape):
        return None

    def _noisy(self, us):
        return us * (1 + self.rng.gauss(0, self.noise))

    def _speed(self, text):
        return float(self._says(text, "speed", "1.0"))

    @staticmethod
    def _says(text, name, default):
        found = re.search(rf"^# {name}=(.*)$", text, re.M)
        return found.group(1) if found else default
