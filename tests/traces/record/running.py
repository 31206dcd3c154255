"""Starting the programs of `programs.py`, and attaching to them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from atrex.traces.record import inject, target

HERE = Path(__file__).parent
PATIENCE = 120.0  # seconds: the machine may be busy with other tests


def until(true, what):
    deadline = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.001)
    return found


class Program:
    """A running program of `programs.py` or another file beside it. `finish` gives what it printed at its end."""

    def __init__(self, name, folder, python=sys.executable, file="programs.py", **environment):
        self.folder = Path(folder)
        self.process = subprocess.Popen(
            [python, HERE / file, name, folder], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | environment,
        )  # fmt: skip
        self.pid = self.process.pid
        until(lambda: (self.folder / "ready").exists() or self.gone(), "the program")
        assert not self.gone()
        self.where = target.inspect(self.pid)

    def gone(self):
        return not target.alive(self.pid)

    def acks(self):
        return (self.folder / "acks").stat().st_size

    def attach(self, release=True):
        """Inject a call of `ack` and wait until it has run."""
        before = self.acks()
        done = inject.inject(self.where, "ack()")
        until(lambda: self.acks() > before or self.gone(), "the injected text")
        assert not self.gone(), self.finish()
        if release:
            inject.release(self.where, done.region)
        return done

    def finish(self):
        (self.folder / "stop").touch()
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, f"status {self.process.returncode}: {out}"
        return json.loads(out)


@contextmanager
def program(name, python=sys.executable, file="programs.py", **environment):
    with tempfile.TemporaryDirectory() as folder:
        running = Program(name, folder, python, file, **environment)
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()
            running.process.stdout.close()


def recorder(where, body):
    """A recorder of its own that runs `body(where)` in a fork, to be killed."""
    pid = os.fork()
    if not pid:
        try:
            body(where)
        finally:
            os._exit(0)
    return pid


def killed_at(where, step):
    """Whether a recorder that is to kill itself at a step came to it."""

    def reached(now):
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    _, status = os.waitpid(recorder(where, lambda w: inject.inject(w, "ack()", reached=reached)), 0)
    return os.WIFSIGNALED(status)
