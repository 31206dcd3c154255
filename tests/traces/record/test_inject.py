"""Attaching to real processes: they go on as if nothing had been, and survive the end of whoever attached."""

import ctypes
import os
import platform
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from atrex.errors import UserError
from atrex.traces.record import inject, memory, target
from atrex.traces.record.elf import Elf
from atrex.traces.record.ptrace import Registers
from tests.traces.record.running import killed_at, program, recorder, until

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64" or platform.system() != "Linux", reason="x86-64 Linux only"),
]
BUSY = ("allocations", "text", "vectors", "floats", "threads", "signals", "pending")
WAITING = ("sleeps", "waits", "children")
STEPS = ("seized", "stopped", "frame on the stack", "map set", "map begun", "map done", "text written", "call set",
         "returning", "return held", "mask back", "vectors back", "registers back")  # fmt: skip


def attachable():
    with program("nothing") as running:
        try:
            running.attach()
        except UserError:
            return False
    return True


@pytest.fixture(scope="module", autouse=True)
def allowed():
    if not attachable():
        pytest.skip("this machine allows no ptrace")


@pytest.mark.parametrize("name", BUSY + WAITING)
def test_a_program_computes_the_same_while_it_is_attached_to(name):
    with program(name) as running:
        results = [running.attach() for _ in range(8)]
        assert all(r.exact for r in results)
        assert [r.mapped for r in results] == [True] + [False] * 7
        running.finish()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUSY + WAITING)
def test_a_thousand_attachments_in_all(name):
    with program(name) as running:
        for _ in range(100):
            running.attach()
        running.finish()


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_other_versions_of_python(version):
    found = shutil.which(f"python{version}")
    if found is None or subprocess.run([found, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    with program("text", python=found) as running:
        assert running.where.version == tuple(map(int, version.split(".")))
        for _ in range(8):
            running.attach()
        running.finish()


def test_signals_that_arrive_meanwhile_are_delivered():
    with program("signals") as running:
        began = time.monotonic()
        for _ in range(20):
            running.attach()
        expected = (time.monotonic() - began) / 0.001
        assert running.finish()["ticks"] > expected / 20  # a busy machine merges many of them


def test_injected_text_leaves_no_name_behind():
    with program("nothing") as running:
        running.attach()
        names = running.finish()["names"]
        running_names = [n for n in names if "atrex" in n]
        assert not running_names


@pytest.fixture(scope="module")
def survivor():
    with program("vectors") as running:
        yield running
        running.finish()


@pytest.mark.parametrize("step", STEPS)
def test_the_program_survives_a_recorder_that_dies_at_any_step(step, survivor):
    maps_anew = step in ("frame on the stack", "map set", "map begun", "map done")
    if maps_anew:
        survivor.attach(release=False)  # so that no memory is left to be used again
    for _ in range(3):
        assert killed_at(survivor.where, step)
        survivor.attach(release=not maps_anew)  # it is still there, and can be attached to


def test_a_recorder_that_dies_after_signals_were_blocked_leaves_them_as_they_were():
    with program("signals") as running:
        running.attach()  # so that memory is there, and the step is reached
        for _ in range(5):
            assert killed_at(running.where, "signals blocked")
            running.attach()
        running.finish()  # it compares its mask


@pytest.mark.parametrize("name", ["text", "sleeps"])
def test_the_program_survives_recorders_killed_at_random_moments(name):
    def attach_on_and_on(where):
        while True:
            inject.release(where, inject.inject(where, "ack()").region)

    chance = random.Random(7)
    with program(name) as running:
        for _ in range(15):
            pid = recorder(running.where, attach_on_and_on)
            time.sleep(chance.uniform(0.0, 0.03))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        running.attach()
        running.finish()


def test_a_long_wait_is_not_cut_short_and_runs_the_text_afterwards():
    with program("nothing") as running:
        done = inject.inject(running.where, "import time; time.sleep(0.5); ack()")
        time.sleep(0.05)  # it sleeps now
        began = time.monotonic()
        running.attach()  # returns at the first text's word
        until(lambda: running.acks() > 1, "the second text")
        assert running.acks() == 2  # the second text ran after the first
        assert time.monotonic() - began > 0.3
        inject.release(running.where, done.region)
        running.finish()


def test_a_wait_with_a_timeout_ends_when_it_would_have():
    code = (
        "import ctypes, os, time; print(os.getpid(), flush=True); began = time.monotonic(); "
        "ctypes.PyDLL(None).usleep(3000000); print(time.monotonic() - began)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        where = target.inspect(pid)
        until(lambda: "nanosleep" in target.whereabouts(pid), "the sleep")
        for _ in range(4):
            time.sleep(0.3)
            assert inject.inject(where, "pass").exact
        # Had the timeout begun anew, it would end three seconds after the last of them.
        assert 3.0 <= float(process.stdout.readline()) < 4.0


def test_a_wait_for_a_reader_goes_on_after_the_stop():
    code = "import os, sys; print(os.getpid(), flush=True); print(sys.stdin.buffer.raw.read(5), flush=True)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        pid = int(process.stdout.readline())
        where = target.inspect(pid)
        until(lambda: "read" in target.whereabouts(pid), "the read")
        for _ in range(5):
            inject.inject(where, "pass")
        process.stdin.write(b"abcde")
        process.stdin.flush()
        assert process.stdout.readline() == b"b'abcde'\n"
        assert process.wait() == 0


def test_a_call_that_waits_for_a_lock_is_undone():
    """`sem_wait` for a semaphore that nobody posts stands for the lock, when the thread itself holds it."""
    with program("vectors") as running:
        region = running.attach().region
        libc = next(m for m in target.mappings(running.pid) if re.search(r"/libc[.-]", m.path))
        with Elf(f"/proc/{running.pid}/root{libc.path}") as elf:
            wait = elf.symbols(["sem_wait"])["sem_wait"][-1].address + libc.start - libc.offset
        stuck = replace(running.where, version=(3, 12), add=wait, run=region.address + 0x200)
        with pytest.raises(UserError, match="it holds the lock of the pending calls, for 0 s"):
            inject.inject(stuck, "pass", patience=0.2)
        running.attach()
        running.finish()


def test_an_interpreter_that_is_being_set_up_is_waited_for(monkeypatch):
    running_, answers = target.running, [False, False]
    monkeypatch.setattr(target, "running", lambda where: answers.pop() if answers else running_(where))
    with program("nothing") as running:
        assert running.attach().tries == 3
        monkeypatch.setattr(target, "running", lambda where: False)
        with pytest.raises(UserError, match="its interpreter is being set up or taken down, for 0 s"):
            inject.inject(running.where, "pass", patience=0.1)
        running.finish()


def test_a_stack_without_room_is_tried_again_elsewhere(monkeypatch):
    write, failures = memory.write, [OSError(14, "Bad address")] * 2

    def full_at_first(pid, address, content):
        if failures:
            raise failures.pop()
        write(pid, address, content)

    monkeypatch.setattr(memory, "write", full_at_first)
    with program("vectors") as running:
        assert running.attach().tries == 3
        running.finish()


def test_a_thread_on_another_stack_is_left_alone(monkeypatch):
    """As in a signal handler with a stack of its own, or in a fiber."""
    places = inject._places
    monkeypatch.setattr(inject, "_places", lambda pid: (*places(pid)[:2], target.Range(0x1000, 0x2000)))
    with program("vectors") as running:
        with pytest.raises(UserError, match="it runs on another stack than its own, for 0 s"):
            inject.inject(running.where, "pass", patience=0.1)
        running.finish()


def test_a_restartable_sequence_is_not_disturbed(monkeypatch):
    """The kernel's area and descriptor of one (rseq(2)), in our own memory."""
    monkeypatch.setattr(target, "running", lambda where: True)
    begin, length = 0x5000, 0x40
    descriptor = ctypes.create_string_buffer(struct.pack("<IIQQQ", 0, 0, begin, length, 0x6000))
    area = ctypes.create_string_buffer(struct.pack("<IIQ", 0, 0, ctypes.addressof(descriptor)))
    with program("nothing") as running:
        attempt = inject._Attempt(replace(running.where, pid=os.getpid()), b"", lambda step: None)
        attempt.tracee = SimpleNamespace(rseq=lambda: ctypes.addressof(area))
        for at, held in ((begin - 1, False), (begin, True), (begin + length - 1, True), (begin + length, False)):
            registers = Registers(rip=at, cs=0x33, orig_rax=0)
            if held:
                with pytest.raises(inject._Retry, match="restartable sequence"):
                    attempt._check(registers)
            else:
                attempt._check(registers)


def test_memory_of_a_recorder_that_died_is_not_used_again_until_its_text_has_run():
    with program("nothing") as running:
        assert killed_at(running.where, "registers back")  # the text is queued, and nobody has released it
        assert running.attach().mapped
        assert not running.attach().mapped
        running.finish()


def test_a_process_that_is_no_python_is_refused():
    with subprocess.Popen(["/bin/sleep", "30"]) as process, pytest.raises(UserError, match="no CPython in .*sleep"):
        try:
            target.inspect(process.pid)
        finally:
            process.kill()


def test_no_such_process():
    with pytest.raises(UserError, match="no process 999999999"):
        target.inspect(999_999_999)


def test_a_stopped_process_is_refused():
    with program("nothing") as running:
        running.process.send_signal(signal.SIGSTOP)
        until(lambda: target.status(running.pid)["State"][0] == "T", "the stop")
        with pytest.raises(UserError, match="is stopped"):
            target.inspect(running.pid)
        running.process.send_signal(signal.SIGCONT)
        running.attach()
        running.finish()


def test_a_process_that_is_traced_already_is_refused():
    with program("nothing") as running:
        reader, writer = os.pipe()

        def hold(where):
            def reached(step):
                if step == "stopped":
                    os.write(writer, b"x")
                    time.sleep(60)

            inject.inject(where, "pass", reached=reached)

        pid = recorder(running.where, hold)
        os.read(reader, 1)
        with pytest.raises(UserError, match=f"process {pid} is tracing it"):
            target.inspect(running.pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        running.attach()
        running.finish()


def test_a_process_of_another_user_is_refused_with_what_helps():
    if os.geteuid():
        pytest.skip("needs root to become somebody else")
    with program("nothing") as running:
        reader, writer = os.pipe()

        def ask(where):
            os.setgid(65534)
            os.setuid(65534)
            try:
                inject.inject(where, "pass")
            except UserError as error:
                os.write(writer, str(error).encode())

        os.waitpid(recorder(running.where, ask), 0)
        assert (
            os.read(reader, 500).decode().endswith("it belongs to uid 0, we are uid 65534: run as that user or as root")
        )
        running.finish()


def test_a_process_that_ends_meanwhile_is_said_to_have_ended():
    with program("nothing") as running:
        running.process.kill()
        until(running.gone, "its end")
        with pytest.raises(UserError, match="the process ended"):
            inject.inject(running.where, "pass")


@pytest.fixture
def no_calls(monkeypatch):
    """As where a container's policy forbids process_vm_readv and process_vm_writev."""

    def forbidden(name, pid, address, buffer):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(memory, "_transfer", forbidden)


def test_where_the_calls_for_memory_are_forbidden_its_file_is_used(no_calls):
    with program("vectors") as running:
        assert [running.attach().mapped for _ in range(3)] == [True, False, False]
        running.finish()


def test_its_file_does_not_write_what_the_process_may_not_write(no_calls):
    with program("nothing") as running:
        for address in (running.where.add, 0x1000):
            with pytest.raises(OSError, match="Bad address"):
                memory.write(running.pid, address, b"\xcc")
        with pytest.raises(OSError, match="Bad address"):
            memory.read(running.pid, 0x1000, 8)


def test_another_process_is_only_written_where_it_may_write_itself():
    with program("nothing") as running, pytest.raises(OSError, match="Bad address"):
        memory.write(running.pid, running.where.add, b"\xcc")
