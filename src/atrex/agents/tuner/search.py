"""The search over knobs: what to try next (Optuna's TPE, seeded), and what times of two kernels say.

Nothing here measures. Whoever does asks for values, and tells what came of them.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence

from atrex.agents.tuner.knobs import Knob, Value, Values, values

Pairs = Mapping[str, Sequence[tuple[float, float]]]
"""By shape: times of incumbent and trial, one after the other, in microseconds."""

_DRAWS = 20  # what TPE may repeat before a combination is drawn that is new
_ATTEMPTS = 1000


class Search:
    """Asks for knob values and is told their loss; the same losses give the same questions for a seed.

    A loss is a logarithm of time: lower is faster, only differences count. The values that the knobs have are known
    from the start, at loss 0.
    """

    def __init__(self, knobs: Sequence[Knob], seed: int):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._failed = optuna.trial.TrialState.FAIL
        self._knobs, self._random = tuple(knobs), random.Random(seed)
        self._space = {k.name: optuna.distributions.CategoricalDistribution(k.options) for k in self._knobs}
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=8))
        self._trial = None
        self._known: dict[tuple[Value, ...], float | None] = {}
        self._add(values(self._knobs), 0.0)

    def ask(self) -> Values | None:
        """Values that were not tried yet, None when there are none left. They are told about before the next are."""
        if not self._knobs or len(self._known) >= math.prod(len(knob.options) for knob in self._knobs):
            return None
        for _ in range(_DRAWS):
            trial = self._study.ask(self._space)
            key = self._key(trial.params)
            if key not in self._known:
                self._trial = trial
                return dict(trial.params)
            self._close(trial, self._known[key])
        for _ in range(_ATTEMPTS):
            drawn = {knob.name: self._random.choice(knob.options) for knob in self._knobs}
            if self._key(drawn) not in self._known:
                return drawn
        return None

    def tell(self, tried: Values, loss: float | None) -> None:
        """What came of values: their loss, or None where they gave no correct kernel."""
        trial, self._trial = self._trial, None
        if trial is not None and trial.params == tried:
            self._close(trial, loss)
            self._known[self._key(tried)] = loss
        else:
            self._add(tried, loss)

    def _add(self, tried: Values, loss: float | None) -> None:
        import optuna

        state = self._failed if loss is None else optuna.trial.TrialState.COMPLETE
        self._study.add_trial(
            optuna.trial.create_trial(params=tried, distributions=self._space, value=loss, state=state)
        )
        self._known[self._key(tried)] = loss

    def _close(self, trial, loss: float | None) -> None:
        if loss is None:
            self._study.tell(trial, state=self._failed)
        else:
            self._study.tell(trial, loss)

    def _key(self, chosen: Values) -> tuple[Value, ...]:
        return tuple(chosen[knob.name] for knob in self._knobs)


def log_ratio(times: Pairs) -> float:
    """The mean over shapes of log(trial / incumbent): under 0, the trial is faster.

    Of a shape, the median over its pairs: neighbours in time share the noise, and one disturbed pair decides nothing.
    """
    return statistics.fmean(statistics.median(math.log(b / a) for a, b in pairs) for pairs in times.values())


def spread(shapes: Sequence[str], most: int) -> list[str]:
    """At most `most` of shapes in their order, first and last among them, evenly apart."""
    if len(shapes) <= most:
        return list(shapes)
    steps = [round(i * (len(shapes) - 1) / (most - 1)) for i in range(most)] if most > 1 else [len(shapes) // 2]
    return [shapes[step] for step in steps]
