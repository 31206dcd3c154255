"""Judges on the nodes of a Ray cluster: an actor per device, fed from one queue as `atrex.evaluate.pool` is.

Ray places the judges and says when one is gone. It repeats nothing by itself: what had a lost judge in hand is given
out once more by the engine, which is how no unit is recorded twice. What a judge needs to know goes to it as an
argument of a method, from process to process; arguments of an actor's creation would be kept by the cluster's control
store.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import atrex
from atrex.errors import UserError
from atrex.evaluate.engine import Terms, UnitName, judge_unit, lost, measured
from atrex.evaluate.pool import Queue
from atrex.evaluate.unit import Unit
from atrex.problems.load import suite_hash
from atrex.scoring.records import UnitRecord

CPU_RESOURCE = "atrex_cpu"
"""What a node that may judge on its CPU is started with: ``ray start --resources='{"atrex_cpu": 1}'``."""
_START_SECONDS = 180.0
_STARTS = 3  # of a judge that dies before it is ready
_LOOK_SECONDS = 2.0
_CLOSE_SECONDS = 10.0


@dataclass
class _Judge:
    """One actor. `ref` is what it is asked for at present: to start, or the record of `unit`."""

    actor: Any
    ref: Any
    starts: int = 1
    place: str | None = None
    unit: int | None = None
    last: tuple[str, str] | None = None


class RayEngine:
    """An engine of `per_device` judges on every device of a kind that a Ray cluster has."""

    def __init__(
        self, kind: str, per_device: int, terms: Terms, address: str | None = None,
        watch: Callable[[str, UnitName | None], None] = lambda place, unit: None,
    ):  # fmt: skip
        """`kind`: "cpu" or "cuda". `address` as `ray.init` takes it; None: RAY_ADDRESS, else a cluster on this machine.

        Returns when the first judge is ready; the others join as they come. Raises UserError when there is no Ray, no
        such cluster, no device in it, or when no judge starts.
        """
        self._ray = _import()
        self._kind, self._per_device, self._terms, self._watch = kind, per_device, terms, watch
        self._suite_hash = suite_hash(terms.suite)
        self._run = secrets.token_hex(8)
        self.measured: dict[str, Any] = {"devices": {}, "judges_per_device": per_device}
        self._judges: list[_Judge] = []
        self._alone_since: float | None = None
        self._ours = not self._ray.is_initialized()
        if self._ours:
            _connect(self._ray, kind, address)
        try:
            for _ in range(self._count()):
                self._judges.append(self._start())
            self._await_first()
        except BaseException:
            self.close()
            raise

    def judge(self, units: Iterable[Unit]) -> Iterator[UnitRecord]:
        """Records as they come. A unit whose judge was lost twice is recorded as `unstable`.

        Raises UserError when no judge has been left for three minutes: what was yielded stands.
        """
        units = list(units)
        names = [UnitName.of(unit) for unit in units]
        queue, tried, left = Queue.of(units), defaultdict(int), len(units)
        while left:
            for judge in self._judges:
                self._give(judge, queue, names)
            for judge in self._answered():
                unit, judge.unit = judge.unit, None
                try:
                    answer = self._ray.get(judge.ref)
                except self._ray.exceptions.RayError as error:
                    self._replace(judge)
                    if unit is None:
                        continue
                    tried[unit] += 1
                    name = names[unit]
                    if tried[unit] == 1:
                        queue.put_back(unit, (name.candidate.name, name.operator))
                        continue
                    left -= 1
                    reason = f"two judges were lost while they had it in hand, the last: {_line(error)}"
                    yield lost(name, self._device, self.measured["chip"], reason, judge.place)
                    continue
                judge.ref = None
                if unit is None:
                    self._join(judge, answer)
                else:
                    left -= 1
                    yield UnitRecord.model_validate_json(answer)

    def close(self) -> None:
        """Let judges end what they have in hand for ten seconds, then end them, and the cluster if it is ours."""
        if self._ray.is_initialized():
            last = []
            for judge in self._judges:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    if judge.place is not None:
                        last.append(judge.actor.close.remote())
            if last:
                self._ray.wait(last, num_returns=len(last), timeout=_CLOSE_SECONDS)
            for judge in self._judges:
                self._end(judge)
            if self._ours:
                self._ray.shutdown()
        self._judges = []

    # -- judges ----------------------------------------------------------------------------------------------------

    @property
    def _device(self) -> str:
        return "cpu" if self._kind == "cpu" else "cuda:0"  # Ray shows an actor its own GPU alone

    def _count(self) -> int:
        resource = CPU_RESOURCE if self._kind == "cpu" else "GPU"
        there = int(self._ray.cluster_resources().get(resource, 0))
        if not there:
            how = f"""start a node with `ray start --resources='{{"{CPU_RESOURCE}": 1}}'`"""
            raise UserError(
                f"--engine ray: no node of the cluster has a resource {resource}; "
                + (how if self._kind == "cpu" else "start a node on a machine with a GPU, or give --device cpu")
            )
        return there * self._per_device

    def _start(self, starts: int = 1) -> _Judge:
        share = 1 / self._per_device
        place = {"resources": {CPU_RESOURCE: share}} if self._kind == "cpu" else {"num_gpus": share}
        remote = self._ray.remote(max_restarts=0, max_task_retries=0, num_cpus=0, **place)(_RemoteJudge)
        actor = remote.remote()
        lease = self._run if self._per_device > 1 or self._kind == "cpu" else None
        wanted = (atrex.__version__, self._suite_hash)
        return _Judge(actor, actor.start.remote(self._terms, self._device, lease, wanted), starts)

    def _await_first(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while self._judges and not self.measured["devices"]:
            if time.monotonic() > deadline:
                raise UserError(f"--engine ray: no judge started within {_START_SECONDS:g} s")
            for judge in self._answered():
                try:
                    answer = self._ray.get(judge.ref)
                except self._ray.exceptions.RayError as error:
                    self._replace(judge)
                    if not self._judges:
                        raise UserError(f"--engine ray: no judge could be started: {_line(error)}") from None
                    continue
                judge.ref = None
                self._join(judge, answer)

    def _join(self, judge: _Judge, answer: tuple[str, str, Any]) -> None:
        """A judge has started, or says why it has not. One run is judged on one kind of device."""
        kind, place, found = answer
        if kind == "error":
            self._refuse(judge, f"--engine ray: the judge on {place} could not start: {found}")
            return
        first = next(iter(self.measured["devices"].items()), None)
        same = ("chip", "device_name")
        if first and any(first[1][field] != found[field] for field in same):
            here, there = (", ".join(str(about[field]) for field in same) for about in (found, first[1]))
            self._refuse(
                judge, f"--engine ray: {place} has {here}, {first[0]} has {there}: a run is judged on one kind"
            )
            return
        judge.place = place
        if first is None:
            self.measured |= {key: value for key, value in found.items() if key not in ("device_name", "versions")}
        self.measured["devices"].setdefault(place, found)

    def _refuse(self, judge: _Judge, why: str) -> None:
        """Go on without it; raises UserError if there is no other."""
        self._end(judge)
        self._judges.remove(judge)
        if not self._judges:
            raise UserError(why)
        print(why, file=sys.stderr)

    def _answered(self) -> list[_Judge]:
        asked = {judge.ref: judge for judge in self._judges if judge.ref is not None}
        if asked:
            ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=_LOOK_SECONDS)
        else:
            ready = []
        if any(judge.place is not None for judge in self._judges):
            self._alone_since = None
        elif self._judges and not ready and self.measured["devices"]:
            self._alone_since = self._alone_since or time.monotonic()
            if time.monotonic() - self._alone_since > _START_SECONDS:
                raise UserError(f"--engine ray: no judge has been left for {_START_SECONDS:g} s; --resume continues")
        if not self._judges:
            raise UserError("--engine ray: no judge is left, and none could be started again; --resume continues")
        return [asked[ref] for ref in ready]

    def _replace(self, judge: _Judge) -> None:
        """Ask for another judge in place of one that is gone; where its node is gone too, it waits for a new node."""
        self._end(judge)
        self._judges.remove(judge)
        if judge.place is not None:
            self._watch(judge.place, None)
            self._judges.append(self._start())
        elif judge.starts < _STARTS:
            self._judges.append(self._start(judge.starts + 1))
        else:
            print(f"--engine ray: a judge that ended {_STARTS} times while it started is given up", file=sys.stderr)

    def _end(self, judge: _Judge) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(judge.actor)

    def _give(self, judge: _Judge, queue: Queue, names: list[UnitName]) -> None:
        if judge.place is None or judge.ref is not None:
            return
        judge.unit = queue.take(judge.last, [j.last for j in self._judges if j is not judge and j.unit is not None])
        if judge.unit is None:
            return
        name = names[judge.unit]
        judge.last = (name.candidate.name, name.operator)
        judge.ref = judge.actor.judge.remote(name)
        self._watch(judge.place, name)


class _RemoteJudge:
    """The judge in an actor's process."""

    def start(
        self, terms: Terms, device: str, lease: str | None, wanted: tuple[str, str]
    ) -> tuple[str, str, dict[str, Any] | str]:
        """("ready", where, what run.json says of the device) or ("error", where, one line)."""
        import ray
        import torch

        from atrex.evaluate.lease import Lease
        from atrex.evaluate.run import device_name, versions
        from atrex.evaluate.setup import prepare
        from atrex.problems.load import load_suite

        context = ray.get_runtime_context()
        gpus = context.get_accelerator_ids().get("GPU") or []
        self._place = "/".join([ray.util.get_node_ip_address(), context.get_node_id()[:8], *(f"gpu{g}" for g in gpus)])
        self._terms, self._setup, self._lease = terms, None, None
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # Ray has set it to 1, for a task among many
        try:
            here = (atrex.__version__, suite_hash(terms.suite))
            if here != wanted:
                raise UserError(f"it has atrex {here[0]} with suite {here[1]}, this run is of {wanted[0]}, {wanted[1]}")
            if lease is not None:  # several nodes may lie on one machine, and judges share a device
                name = f"atrex-{lease}-{'-'.join(gpus) or device}"
                self._lease = Path(tempfile.gettempdir()) / name
            self._setup = prepare(
                device, terms.seeds, terms.seed_count, terms.budgets, terms.timed_calls, hidden=terms.hidden,
                lease=Lease(self._lease) if self._lease else None,
            )  # fmt: skip
            self._suite = load_suite(terms.suite)
        except UserError as error:
            return "error", self._place, str(error)
        found = measured(self._setup) | {"device_name": device_name(self._setup.device), "versions": versions()}
        return "ready", self._place, found

    def judge(self, name: UnitName) -> str:
        """The unit's record, as JSON."""
        record = judge_unit(self._setup, name.unit(self._suite), self._terms)
        return record.model_copy(update={"node": self._place}).model_dump_json()

    def close(self) -> None:
        if self._setup is not None:
            self._setup.close()
        if self._lease is not None:
            for path in (self._lease, self._lease.with_name(self._lease.name + ".turnstile")):
                path.unlink(missing_ok=True)


def _import() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that is started here reports to nobody
    # Ray warns of a future default for tasks without a GPU; judges on the CPU look at none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UserError("--engine ray needs Ray: pip install 'atrex[ray]'") from None
    return ray


def _connect(ray: Any, kind: str, address: str | None) -> None:
    address = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address:
        options["address"] = address
    else:
        options |= {"include_dashboard": False, "resources": {CPU_RESOURCE: 1} if kind == "cpu" else {}}
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise UserError(f"--address {address}: no Ray cluster could be joined: {_line(error)}") from None


def _line(error: BaseException) -> str:
    """The first line of an error that says something, or, of one in a judge's code, the last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return (lines[-1] if "Traceback" in str(error) or "ray::" in lines[0] else lines[0])[:300]
