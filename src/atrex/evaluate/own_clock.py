"""The judge's own clock: batches of calls timed from outside, whose outputs it finds in its own memory.

A worker's process is the candidate's: it can forge its clock, and hand back outputs that it computes only when somebody
looks. So the judge times batches. Every call of a batch has operands of its own, that no earlier batch had at that
place, and puts its outputs into a mailbox of its own; what it changes in place is its own too. The judge copies all of
it the moment the batch has ended. Calls that were not done by then are missing there, whatever the worker says;
what was copied is compared with the reference by `Timing.verify`, when the device need not be held alone any more.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from atrex.evaluate import stats
from atrex.evaluate.answers import Armed, Forwarded, read
from atrex.evaluate.bindings import Bindings
from atrex.evaluate.failures import Doubt, UnitFailure
from atrex.evaluate.layout import raw_words
from atrex.evaluate.outputs import put_by
from atrex.evaluate.performance import Kept, Samples, Timing
from atrex.scoring.records import Stage

LONG_US = 1000.0
LONG_SLACK = 0.3  # how far batches may exceed a long call: they heat the device, and its clock drops
ROUND_HOST_US = 60.0  # host time of a round beside the forward's launch: flush and delay are queued too
MAIL_HOST_US = 20.0  # the same of one output's way to its mailbox
NULL_WAITS = 15
WAITING_SLACK_US = 20.0  # what waking up after a wait may differ between two processes
WAITING_SHARE = 0.25  # the same of host work between the waits
ROUNDS = 5
FEWEST_ROUNDS = 3  # after which batches that agree with the claim are enough
TRIES = 3
WORK_US = 10_000.0  # device work in the longer batch beyond the shorter one
HOST_WORK_US = 3000.0  # a CPU that is shared takes a core away every few milliseconds
HOST_ROUNDS = 5
REST_SECONDS = 0.005  # until the judge's own OpenMP threads, which have just laid operands, leave the cores alone
HOST_ROUNDS_IN_DOUBT = 40
WARM_SHARE = 0.8  # a clock that is 10 % off already shows in the outside times of the calls
FORGED_SHARE = 0.4  # a shared machine's memory halves its speed from one minute to the next; no time is taken then
FEWEST_MAILBOXES = 3
UNEVEN_SHARE = 0.2  # of what batches add to a claim: null batches that differ by so much explain it
HELD_UP_SHARE = 0.5  # of what batches add to a claim: calls that other work held up by so much explain it
# Calls of a long batch whose outputs are compared with the reference, beyond those that look odd. Of calls over
# LONG_US, whose references take seconds, in the first such batch alone.
VERIFIED = 2
ODD_VERIFIED = 4


def slack_us(claim: float) -> float:
    """How far the judge's clock and a claimed time may lie apart on a device. Microseconds."""
    return max(2.0, 0.10 * claim)


class OwnClock:
    """Looks at one timed unit. `agree` raises UnitFailure, Doubt, and what the worker's end raises."""

    def __init__(self, timing: Timing, samples: Samples):
        self._t, self._samples = timing, samples
        self._bindings, self._rng = timing.bindings, timing.rng
        self._events = timing.protocol.method == "events"
        usable = min(self._bindings.places, self._bindings.mailboxes)
        self._mutates = timing.problem.metadata.mutates
        self._mailed = usable >= FEWEST_MAILBOXES
        self._usable = usable if self._mailed else Bindings.PLACES
        self._seen: dict[int, dict[str, torch.Tensor]] = {}
        self._verified: set[int] = set()
        self._waited_us = 0.0  # that a thread of the worker waited for a core in the last batch (CPU)
        self._uneven_us = 0.0  # by which the null batches behind the last slope differ, per call (device)
        if self._mailed:
            self._variants = self._make_variants()
            self._snapshot = torch.empty_like(self._bindings.mail(usable))
            self._left = torch.empty_like(self._variants) if self._mutates else None
            self._mailboxes = [self._bindings.outputs_in(row) for row in self._bindings.mail(usable)]
            # One for each call on the CPU, where an output that was just written may lie in memory and not in a cache.
            rows = self._bindings.mail(1 if self._events else usable).clone()
            dummies = [self._bindings.outputs_in(row) for row in rows]
            self._copied = [list(dummy.values()) for dummy in dummies]  # what a null batch copies, call after call
            self._returned = [tensors[0] if len(tensors) == 1 else dummies[i] for i, tensors in enumerate(self._copied)]

    # -- the verdict -----------------------------------------------------------------------------------------------

    def agree(self) -> float:
        """The judge's time of a call. Raises Doubt (`integrity`, `unstable`) when it contradicts the worker's median.

        On a device it must lie within max(2 us, 10 %) of the median. Up to `LONG_US` it is the slope over batches; a
        longer call is seen well enough from outside, one by one, and at the clocks at which it was timed, and batches
        bound it from above only. Where other work has the host's cores, a time from outside is longer, and so are the
        judge's own null batches: what they can explain is `unstable`. On the CPU batches run with warm caches, so their
        slope bounds the claim from below, and the outside clock of every call bounds it from above.
        """
        claim = stats.median(self._samples.us)
        on_device = self._long if claim > LONG_US else self._short
        check = on_device if self._events else self._host
        seen, wrong = check(claim)
        if wrong is not None:
            raise wrong
        return seen

    def _short(self, claim: float) -> tuple[float, Doubt | None]:
        t, samples = self._t, self._samples
        slack = max(WAITING_SLACK_US, WAITING_SHARE * claim) if samples.waits else slack_us(claim)
        for patience in range(1, TRIES + 1):  # other load only makes batches longer
            null = self._null_wait_us() if samples.waits else t.baseline.null_us
            seen = null + self._slope(claim, patience=patience, near=claim - null, by=slack / 2)
            wrong = self._differs(claim, seen, slack)
            if wrong is None:
                break
        return seen, wrong

    def _differs(self, claim: float, seen: float, slack: float, clock: str = "the judge's own clock") -> Doubt | None:
        """A claim under what the judge sees is forged or wrong; one over it gains nothing, and is badly measured.

        The time of a forward that waits for the device is host time in part, and varies: there only the first counts.
        """
        if seen > claim + slack:
            said = f"other work had the cores: the worker's median is {claim:.2f} us, {clock} says {seen:.2f} us"
            if self._uneven_us > max(slack, UNEVEN_SHARE * (seen - claim)):
                return Doubt("unstable", f"{said}, give or take {self._uneven_us:.2f} us")
            held_up = self._held_up_us(claim)
            if held_up > HELD_UP_SHARE * (seen - claim):
                return Doubt("unstable", f"{said}, but calls one by one were held up by {held_up:.2f} us too")
            return _doubt(claim, f"{clock} says {seen:.2f} us")
        if seen < claim - slack and not self._samples.waits:
            return Doubt("unstable", f"the worker's median is {claim:.2f} us, {clock} says only {seen:.2f} us")
        return None

    def _quick(self, claim: float) -> list[float]:
        """What calls no slower than the median took from outside beyond what they say: those can have forged it."""
        samples = self._samples
        return [beside for beside, us in zip(samples.beside_us, samples.us, strict=True) if us <= claim]

    def _held_up_us(self, claim: float) -> float:
        """How long such calls were held up on average, beyond what the way varies by; forged time is in all alike."""
        way, quick = self._t.baseline, self._quick(claim)
        varies = way.round_trip_p90_us - way.round_trip_p10_us
        return sum(quick) / len(quick) - stats.percentile(quick, 10) - varies

    def _long(self, claim: float) -> tuple[float, Doubt | None]:
        """From outside, call by call; batches decide where that contradicts, and bound the claim where it does not."""
        samples, way = self._samples, self._t.baseline
        added = way.round_trip_p10_us + samples.delay_us - way.DELAY_US
        # Other load makes some of them longer from outside, but not all.
        seen = claim + stats.percentile(self._quick(claim), 10) - added
        varies = way.round_trip_p90_us - way.round_trip_p10_us  # a way that has become shorter is no shorter call
        if not -slack_us(claim) - varies <= seen - claim <= slack_us(claim):
            return self._long_in_doubt(claim, seen)
        if self._mailed:
            batched = self._slope(claim, rounds=2)
            return seen, self._differs(claim, batched, LONG_SLACK * claim, "in batches the judge's own clock")
        return seen, None

    def _long_in_doubt(self, claim: float, outside: float) -> tuple[float, Doubt | None]:
        """Another time from outside than claimed: batches that agree with the claim outweigh a clock others stretch."""
        if not self._mailed:
            self._slope(claim)  # for what the null batches say of the host
            return outside, self._differs(claim, outside, slack_us(claim))
        seen, wrong = self._short(claim)
        if wrong and claim < seen <= (1 + LONG_SLACK) * claim:
            said = f"the worker's median is {claim:.2f} us, from outside {outside:.2f} us, in batches {seen:.2f} us"
            wrong = Doubt("unstable", said)
        return seen, wrong

    def _host(self, claim: float) -> tuple[float, Doubt | None]:
        samples, baseline = self._samples, self._t.baseline
        seen, waited = self._least(claim)
        if claim < _floor_of(seen):
            said = f"{claim:.2f} us cold, the judge's clock says {seen:.2f} us warm"
            if claim >= _floor_of(seen - waited):
                return seen, Doubt("unstable", f"other work had the cores: the worker's median is {said}")
            if claim >= FORGED_SHARE * seen:
                return seen, Doubt("unstable", f"the machine's speed varies: the worker's median is {said}")
            return seen, Doubt("integrity", f"the worker's median is {said}")
        # A forged clock is off in every call, other load only in some: the 10th percentile tells them apart.
        excess = stats.percentile(samples.beside_us, 10) - baseline.round_trip_us
        if excess > max(2 * baseline.round_trip_p90_us, 0.10 * claim):
            return seen, _doubt(claim, f"the judge's outside clock adds {excess:.2f} us")
        return seen, None

    # -- slope -----------------------------------------------------------------------------------------------------

    def _slope(
        self, claim: float, rounds: int = ROUNDS, patience: int = 1, near: float | None = None, by: float = 0.0
    ) -> float:
        """Microseconds per call on a device: slope over two secretly drawn batch sizes, less the null's.

        The delay between calls exceeds a call's host time, so that the device is never idle within a batch. A forward
        that waits for the device defeats that; its rounds are waited for one by one, and so are the null's. Whatever
        disturbs a batch makes it longer, so the shortest of several of each size counts. `patience` multiplies the
        delay and the number of rounds; a slope that lies `near` something, `by` so much, after fewer is not improved.
        """
        mail_us = MAIL_HOST_US * len(self._mailboxes[0]) if self._mailed else 0.0
        host_us = 1.5 * self._samples.host_us
        if not self._samples.waits:
            host_us = max(host_us, stats.percentile(self._samples.launch_us, 90))
        delay = self._t.protocol.bounded(patience * (host_us + ROUND_HOST_US + mail_us))
        few = self._rng.randint(1, 3) if self._usable > 4 else 1
        extra = max(2, min(40, int(WORK_US / (claim + delay + 100.0))))
        many = min(few + extra + self._rng.randint(0, 2), self._usable)
        theirs: dict[int, list[float]] = {few: [], many: []}
        ours: dict[int, list[float]] = {few: [], many: []}
        for i in range(patience * rounds):
            for count in (few, many):
                verified = VERIFIED if count == many and (i == 0 or claim <= LONG_US) else 0
                theirs[count].append(self._batch(count, delay, verified))
                ours[count].append(self._null_batch(count, delay))
            slope = (min(theirs[many]) - min(theirs[few]) - min(ours[many]) + min(ours[few])) / (many - few)
            if near is not None and i + 1 >= FEWEST_ROUNDS and abs(slope - near) <= by:
                break
        self._spot_check()
        self._uneven_us = max(stats.median(ours[n]) - min(ours[n]) for n in (few, many)) / (many - few)
        return slope

    def _least(self, claim: float) -> tuple[float, float]:
        """On the CPU: what a call takes at least, and what a thread waited for a core in it. Microseconds.

        The shortest of several batches less the null's and less a round trip. Other load only makes a batch longer, so
        where the bound contradicts the claim there are more of them: an honest claim finds a batch that was left alone.
        """
        fits = int(HOST_WORK_US / claim)
        count = min(max(1, min(40, fits)) + self._rng.randint(0, min(2, fits)), self._usable)
        batches: list[tuple[float, float]] = []
        nulls: list[float] = []
        while True:
            took = self._batch(count, 0.0, VERIFIED if len(batches) < 2 else 0)
            batches.append((took, self._waited_us))
            nulls.append(self._null_batch(count, 0.0))
            took, waited = min(batches)
            seen = (took - min(nulls) - self._t.baseline.round_trip_p10_us) / count
            if len(batches) >= (HOST_ROUNDS if claim >= _floor_of(seen) else HOST_ROUNDS_IN_DOUBT):
                break
        self._spot_check()
        return seen, waited / count

    def _spot_check(self) -> None:
        if not self._mailed and not self._mutates:
            self._t.spot_check()

    def _batch(self, count: int, delay_us: float, verified: int) -> float:
        """Time of a batch of `count` calls from outside, whose outputs are kept. Raises UnitFailure."""
        t = self._t
        order = {"op": "batch", "delay_us": delay_us, "waiting": self._samples.waits, "mailed": self._mailed}
        if not self._mailed:
            t.arm()
            answer, took = t.worker.ask_timed(order | {"places": [t.place] * count}, t.limit(count), t.spin)
            t.last = read(Forwarded, answer, "batch")
            return took
        places = self._rng.sample(range(self._usable), count)
        variants = self._rng.sample(range(self._usable), count)
        if self._mutates:  # what the last call left there is looked at before new operands cover it
            t.still(read(Armed, t.worker.ask({"op": "retire"}, t.limit(1)), "batch"))
        laid = self._bindings.operands(self._usable)
        for place, variant in zip(places, variants, strict=True):
            laid[place].copy_(self._variants[variant])
        self._bindings.clear(count)
        if not self._events:
            time.sleep(REST_SECONDS)
        t.still(read(Armed, t.worker.ask({"op": "arm", "place": places[0]}, t.limit(1)), "batch"))
        before = self._run_delays()

        def ended() -> None:
            self._take(places)
            waits = [us - before.get(thread, us) for thread, us in self._run_delays().items()]
            self._waited_us = max(waits, default=0.0)

        answer, took = t.worker.ask_timed(order | {"places": places}, t.limit(count), t.spin, ended)
        read(Forwarded, answer, "batch")
        self._check(places, variants, verified)
        return took

    def _null_batch(self, count: int, delay_us: float) -> float:
        """The same batch of a forward that does nothing, in the judge's own process."""
        null = self._t.protocol.synchronize if self._samples.waits else _nothing

        def keep(i: int, outputs: Any) -> None:
            put_by(self._returned[i % len(self._returned)], self._mailboxes[i])

        if self._mailed and not self._events:
            self._t.protocol.evict([tensor for tensors in self._copied[:count] for tensor in tensors])
        started = time.perf_counter_ns()
        self._t.protocol.batch(lambda i: null(), count, delay_us, self._samples.waits, keep if self._mailed else None)
        return (time.perf_counter_ns() - started) / 1e3

    def _null_wait_us(self) -> float:
        """What a forward that does nothing but wait for the device reads under the protocol, in the judge's process."""
        protocol, times = self._t.protocol, []
        for _ in range(NULL_WAITS):
            protocol.evict(())
            times.append(protocol.timed(protocol.synchronize, self._samples.delay_us)[1])
        return stats.median(times)

    def _run_delays(self) -> dict[str, float]:
        """Microseconds that each thread of the worker has waited for a core (Linux: /proc/PID/schedstat). CPU only."""
        found: dict[str, float] = {}
        for task in Path(f"/proc/{self._t.worker.pid}/task").glob("*/schedstat") if not self._events else ():
            with suppress(OSError, IndexError, ValueError):
                found[task.parent.name] = int(task.read_text().split()[1]) / 1e3
        return found

    # -- mail ------------------------------------------------------------------------------------------------------

    def _make_variants(self) -> torch.Tensor:
        """Sets of operands that differ, one per place: the bytes of each as a row."""
        t = self._t
        for place in range(self._usable):
            t.refresher.step()
            t.bindings.write(t.refresher.inputs, place)
        return self._bindings.operands(self._usable).clone()

    def _take(self, places: list[int]) -> None:
        """Copy what the calls of a batch have written, before the worker is heard again."""
        self._snapshot[: len(places)].copy_(self._bindings.mail(len(places)))
        if self._mutates:
            laid = self._bindings.operands(self._usable)
            for row, place in zip(self._left, places, strict=False):
                row.copy_(laid[place])
        self._bindings.synchronize()

    def _given(self, i: int) -> dict[str, torch.Tensor]:
        """The results of call `i` of the last batch: its mailbox, and the operands that it had to change."""
        given = self._bindings.outputs_in(self._snapshot[i])
        if self._mutates:
            operands = self._bindings.operands_in(self._left[i])
            given |= {name: operands[name] for name in self._mutates}
        return given

    def _check(self, places: list[int], variants: list[int], verified: int) -> None:
        """Every call gave what its variant gave before. Some calls, and those that differ, go to the reference."""
        laid = self._bindings.operands(self._usable)
        touched, differing = [], []
        for i, (place, variant) in enumerate(zip(places, variants, strict=True)):
            touched.append(self._unlike(self._fixed(laid[place]), self._fixed(self._variants[variant])))
            given = self._given(i)
            before = self._seen.get(variant, given)
            differing.append(self._unlike(given, before))
            if before is given:
                self._seen[variant] = {name: tensor.clone() for name, tensor in given.items()}
        found = torch.stack([flag.to(laid.device) for flag in touched + differing]).tolist()  # waits once for all
        if any(found[: len(places)]):
            raise UnitFailure(Stage.RUNTIME, "integrity", "a call of a batch changed its operands")
        odd = [i for i, differs in enumerate(found[len(places) :]) if differs]
        for i in self._rng.sample(range(len(places)), min(verified, len(places))):
            if variants[i] not in self._verified:
                self._verify(variants[i], self._given(i))
        for i in self._rng.sample(odd, min(ODD_VERIFIED, len(odd))):  # bits may vary, values may not
            self._verify(variants[i], self._seen[variants[i]])
            self._verify(variants[i], self._given(i))

    def _fixed(self, row: torch.Tensor) -> dict[str, torch.Tensor]:
        """Of a place, or a copy of one, what a call must leave as it is: the whole row where nothing may change."""
        if not self._mutates:
            return {"": row}
        operands = self._bindings.operands_in(row)
        return {name: tensor for name, tensor in operands.items() if name not in self._mutates}

    @staticmethod
    def _unlike(these: dict[str, torch.Tensor], those: dict[str, torch.Tensor]) -> torch.Tensor:
        """Whether any bits differ, as a tensor that nobody has waited for."""
        found = [(raw_words(tensor) != raw_words(those[name])).any() for name, tensor in these.items()]
        return torch.stack(found).any() if found else torch.tensor(False)

    def _verify(self, variant: int, given: dict[str, torch.Tensor]) -> None:
        inputs = self._bindings.operands_in(self._variants[variant])  # nobody writes there any more
        given = {name: tensor.clone() for name, tensor in given.items()}
        self._t.keep(Kept("batch", inputs, given))
        self._verified.add(variant)


def _doubt(claim: float, what: str) -> Doubt:
    return Doubt("integrity", f"the worker's median is {claim:.2f} us, {what}")


def _floor_of(seen_us: float) -> float:
    """The least claim that a warm time allows on the CPU: honest calls of a millisecond are seen up to 1.1 times it."""
    return WARM_SHARE * seen_us - 2.0


def _nothing() -> None:
    return None
