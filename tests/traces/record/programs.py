"""Programs to attach to. Each repeats a piece of work whose result must be the same every time.

    python programs.py NAME FOLDER

It runs until the file `stop` is in the folder, prints how often it worked and ends with status 0; with 3 as soon as a
result differs. Injected text can call `ack`.
"""

import ctypes
import faulthandler
import hashlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time

ROUND = 50  # iterations of a round; the file is looked for between rounds


def allocations():
    kept = []
    for i in range(400):
        kept.append([bytes(i % 97), {i: str(i)}, [None] * (i % 31)])
        if i % 7 == 0:
            del kept[: len(kept) // 2]
    return sum(len(a) + len(c) for a, _, c in kept)


def text():
    document = {f"key{i}": [i, str(i) * 3, {"n": i / 7}] for i in range(40)}
    written = json.dumps(json.loads(json.dumps(document)), sort_keys=True)
    found = bytearray(re.sub(r"(\d+)", lambda m: m[1][::-1], written).encode())
    return hashlib.md5(found).hexdigest()


def vectors():
    import numpy as np

    a = np.arange(4096, dtype=np.float64).reshape(64, 64) / 7.0
    return hashlib.md5((np.sqrt(a) * a + np.sin(a) @ a.T).tobytes()).hexdigest()


def floats():
    x = 0.1
    for _ in range(2000):
        x = 3.9 * x * (1.0 - x)  # chaotic: a wrong bit anywhere shows
    return x.hex()


def sleeps():
    began = time.monotonic()
    time.sleep(0.002)
    select.select([], [], [], 0.001)
    select.poll().poll(1)
    return time.monotonic() - began >= 0.004


def waits():
    """Waits for another thread and for a pipe, whose writer is in the same process."""
    reader, writer = os.pipe()
    done = threading.Event()

    def other():
        os.write(writer, b"x" * 10)
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    read = os.read(reader, 10)
    waited = done.wait(5.0)
    thread.join()
    os.close(reader)
    os.close(writer)
    return read, waited


def children():
    return subprocess.run(["/bin/echo", "one"], stdout=subprocess.PIPE, check=True).stdout


def pending():
    """Queues pending calls of its own all the time, so that their lock is often held."""
    for _ in range(20):
        ctypes.pythonapi.Py_AddPendingCall(CALLBACK, None)
    return len(called) >= 0


def nothing():
    time.sleep(0.01)
    return True


called = []
CALLBACK = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: called.append(1) or called.clear() or 0)
WORK = {
    "allocations": allocations, "text": text, "vectors": vectors, "floats": floats, "sleeps": sleeps, "waits": waits,
    "children": children, "pending": pending, "nothing": nothing, "threads": text, "signals": text,
}  # fmt: skip
ticks = []


def main():
    global ack
    name, folder = sys.argv[1:]
    work = WORK[name]
    faulthandler.enable()  # with a signal stack of its own
    acknowledged = os.open(os.path.join(folder, "acks"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ack = lambda: os.write(acknowledged, b".")  # noqa: E731
    stop = os.path.join(folder, "stop")
    if name == "threads":
        for _ in range(2):
            threading.Thread(target=lambda: [allocations() for _ in iter(lambda: os.path.exists(stop), True)]).start()
    if name == "signals":
        signal.signal(signal.SIGALRM, lambda *_: ticks.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    state = (signal_stack(), signal.pthread_sigmask(signal.SIG_BLOCK, []))
    expected, rounds = work(), 0
    open(os.path.join(folder, "ready"), "w").close()
    while not os.path.exists(stop):
        for _ in range(1 if name in ("sleeps", "children", "nothing") else ROUND):
            rounds += 1
            if work() != expected:
                print(f"round {rounds} gave another result", flush=True)
                os._exit(3)
        if (signal_stack(), signal.pthread_sigmask(signal.SIG_BLOCK, [])) != state:
            print("the signal stack or mask is another one", flush=True)
            os._exit(3)
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({"rounds": rounds, "ticks": len(ticks), "names": sorted(globals())}), flush=True)


def signal_stack():
    """The alternate signal stack of this thread: address, flags, size."""

    class Stack(ctypes.Structure):
        _fields_ = [("pointer", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

    found = Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found))
    return found.pointer, found.flags, found.size


if __name__ == "__main__":
    main()
