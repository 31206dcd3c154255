"""The multiprocessor that kernels run on: one program at a time, its partitions in turns, copies under way between.

A program's partitions are threads of which one runs; which one goes on, and which copy arrives next, is drawn from a
seed, so that a run can be repeated. A partition that waits for what cannot come is a deadlock, found at once.
Shared memory knows what is under way: a copy that overwrites what a product or a store still reads, a product over what
has not arrived or was written without a fence, and a copy or product left behind at the end are faults. Global memory
knows what the kernel before wrote: a kernel that was launched early and takes it before gdc_wait is at fault, too.
"""

from __future__ import annotations

import random
import threading


class Fault(Exception):
    """Something that a device would do wrong, at times or always."""


class Race(Fault):
    """Two accesses to the same bytes without an order between them."""


class Deadlock(Fault):
    """Everybody waits."""


class OutOfBounds(Fault):
    """An address outside of its tensor."""


class Warps:
    """A partition of a program: what it has started and not waited for."""

    def __init__(self, program: Program):
        self.program = program
        self.products: list = []
        self.groups: list[list[Copy]] = []  # of cp.async
        self.open: list[Copy] = []
        self.stores: list = []
        self.ready = None  # what it waits for, while it waits
        self.done = False
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)

    def check_done(self) -> None:
        if self.products:
            raise Race("products that nobody waited for")
        if self.stores:
            raise Race("stores from shared memory that nobody waited for")


class Copy:
    """Bytes on their way into shared memory, where nothing may be read until they arrive."""

    def __init__(self, target, data, arrived=lambda: None):
        self.target, self.data, self.arrived, self.span = target, data, arrived, target.span

    def land(self) -> None:
        self.target.put(self.data)
        self.arrived()


class Program:
    def __init__(self, place: tuple[int, int, int], grid: tuple[int, int, int], rng: random.Random, early: bool):
        self.place, self.grid, self.rng = place, grid, rng
        self.flying: list[Copy] = []
        self.unfenced: list[tuple[int, int]] = []
        self.warps = [Warps(self)]
        self.barriers: list = []
        self.back = threading.Semaphore(0)
        self.aborted = False
        self.early = early  # launched while the kernel before runs, and has not waited for it
        # How long copies take and who is ahead differ from program to program.
        self.hurry = rng.choice((0.02, 0.3, 0.9))

    def land_one(self, needed: bool) -> bool:
        """Let a copy arrive, if there is one; the slow ones only where nobody can go on without."""
        # What cp.async brings arrives when it is waited for.
        ready = [copy for copy in self.flying if isinstance(copy, Bulk) and (needed or copy.delay < 0.6)]
        if not ready:
            return False
        copy = min(ready, key=lambda copy: copy.delay)
        self.flying.remove(copy)
        copy.land()
        return True

    def wait(self, ready) -> None:
        """Return when ready() is true."""
        warps = now()
        if warps is not self.warps[0]:
            warps.ready = ready
            self._pause(warps)
            return
        while not ready():
            if not self.land_one(True):
                raise Deadlock(f"program {self.place} waits for what nobody brings")

    def turn(self) -> None:
        """Others may go on first."""
        if now() is not self.warps[0]:
            self.wait(lambda: True)

    def _pause(self, warps: Warps) -> None:
        self.back.release()
        warps.go.acquire()
        if self.aborted:
            raise SystemExit
        _now[0] = warps

    def specialize(self, parts) -> None:
        """Run (function, arguments) side by side."""
        started = []
        for function, arguments in parts:
            warps = Warps(self)
            thread = threading.Thread(target=self._run, args=(warps, function, arguments), daemon=True)
            started.append((warps, thread))
            thread.start()
        every = [warps for warps, _ in started]
        self.warps += every
        ahead = self.rng.sample(every, len(every))
        try:
            while True:
                left = [warps for warps in ahead if not warps.done]
                ready = [warps for warps in left if warps.ready is None or warps.ready()]
                if not left:
                    return
                if (not ready or self.rng.random() < self.hurry) and self.land_one(not ready):
                    continue
                if not ready:
                    raise Deadlock(f"{len(left)} of {len(every)} partitions of program {self.place} wait for ever")
                self._resume(ready[0] if self.rng.random() < 0.6 else self.rng.choice(ready))
        finally:
            self.aborted = True
            for warps, thread in started:
                if not warps.done:
                    warps.go.release()
                thread.join()
            _now[0] = self.warps[0]

    def _resume(self, warps: Warps) -> None:
        warps.ready = None
        warps.go.release()
        self.back.acquire()
        if warps.error:
            raise warps.error

    def _run(self, warps: Warps, function, arguments) -> None:
        warps.go.acquire()
        if not self.aborted:
            _now[0] = warps
            try:
                function(*arguments)
                warps.check_done()
            except SystemExit:
                pass
            except BaseException as error:
                warps.error = error
        warps.done = True
        self.back.release()

    def check_done(self) -> None:
        self.warps[0].check_done()
        if self.flying:
            raise Race(f"{len(self.flying)} copies into shared memory that nobody waited for")
        for barrier in self.barriers:
            barrier.check_done()


class Bulk(Copy):
    """A copy by TMA, which overtakes others or is overtaken."""

    def __init__(self, target, data, arrived):
        super().__init__(target, data, arrived)
        self.delay = now().program.rng.random()


def overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def reads(here: tuple[int, int], fenced: bool = False) -> None:
    """Shared memory is read, by the tensor cores or TMA if it has to be `fenced`."""
    program = now().program
    if any(overlap(copy.span, here) for copy in program.flying):
        raise Race("shared memory is read before a copy into it has arrived")
    if fenced and any(overlap(other, here) for other in program.unfenced):
        raise Race("shared memory that threads wrote is read by the tensor cores or TMA without a fence")


def writes(here: tuple[int, int]) -> None:
    program = now().program
    if any(overlap(copy.span, here) for copy in program.flying):
        raise Race("shared memory is written while a copy into it is under way")
    for warps in program.warps:
        if any(overlap(source, here) for work in warps.products + warps.stores for source in work.sources):
            raise Race("shared memory is overwritten while a product or a store reads it")


_now: list[Warps | None] = [None]


def now() -> Warps:
    if _now[0] is None:
        raise RuntimeError("no kernel runs")
    return _now[0]


def running() -> bool:
    return _now[0] is not None


class Stream:
    """What the launches of a forward leave behind, for those that start early."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.written: set[int] | None = None  # None: anything, by whatever ran before
        self.read: set[int] = set()
        self.now_written: set[int] = set()
        self.now_read: set[int] = set()
        self.launches: list[tuple[str, tuple[int, int, int]]] = []
        self.warps = 4

    def launch(self, name: str, body, grid: tuple[int, int, int], early: bool) -> None:
        self.launches.append((name, grid))
        self.now_written, self.now_read = set(), set()
        places = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
        self.rng.shuffle(places)
        waited = not early
        for place in places:
            program = Program(place, grid, self.rng, early)
            _now[0] = program.warps[0]
            try:
                body()
                program.check_done()
            finally:
                _now[0] = None
            waited |= not program.early
        if waited:
            self.written, self.read = self.now_written, self.now_read
        elif self.written is not None:
            self.written, self.read = self.written | self.now_written, self.read | self.now_read


_stream = [Stream(0)]


def stream() -> Stream:
    return _stream[0]


def start(seed: int) -> Stream:
    """A new stream, behind work that may still run."""
    _stream[0] = Stream(seed)
    return _stream[0]


def touched(storage: int, write: bool) -> None:
    """A program takes global memory."""
    stream = _stream[0]
    if now().program.early:
        late = stream.written is None or storage in stream.written or (write and storage in stream.read)
        if late:
            verb = "writes" if write else "reads"
            raise Race(f"{stream.launches[-1][0]} {verb} what the kernel before may still use: no gdc_wait before")
    (stream.now_written if write else stream.now_read).add(storage)
