"""The program inside the jail that compiles, checks and times kernels for the tuner. It imports nothing of Atrex.

It reads one JSON order a line and answers with one JSON line. Each order is worked on by a child forked before any
thread or device was started, so that a kernel that crashes or hangs takes its own order with it and nothing else:

    {"do": "sizes"}                                    bytes of the operands of every shape
    {"do": "survey", "source", "shapes", "check"}      which of these shapes are quick enough to be measured
    {"do": "compare", "incumbent", "trial", "shapes", "check", "repeats", "seed"}          their times, pair by pair
    {"do": "alone", "source", "shapes", "check", "repeats", "seed"}    times of one kernel, and what it has compiled to

Each has a "limit" in seconds. `measure.py cpu|cuda [FLUSH_LIBRARY SWEEP_BYTES]`, in a folder with reference.py,
input.py and shapes.json. The times are for a search: whoever judges a kernel takes his own.
"""

import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback

import torch

if not torch.backends.cuda.is_built():  # in a CUDA build this import starts the driver, and nothing could be forked
    import torch.utils.cpp_extension  # noqa: F401  part of every C++ candidate's import, here once

LONGEST = 0.5  # seconds of a forward that can be repeated often enough
ROUND_SECONDS = 1.5  # of the repeats of one shape
FEWEST = 3
REASON = 400  # characters of an error


class Wrong(Exception):
    """The kernel's values are not the reference's."""


def main():
    print(json.dumps({"ready": True, "device": _device_name(), "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def _device_name():
    """The GPU's name, None without one. Asked in a child: the device must not be started in the process that forks."""
    if _device() == "cpu":
        return None
    answer = _forked(lambda say: {"name": torch.cuda.get_device_name() if torch.cuda.is_available() else None}, 120)
    return answer.get("name")


def _answer(order):
    work = {"sizes": _sizes, "survey": _survey, "compare": _compare, "alone": _alone}[order["do"]]
    return _forked(lambda say: work(order, say), order["limit"])


def _forked(work, limit):
    """What `work` returns in a child, or {"failed": how, "reason": ...}; what it says is how far it has come."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(out)
        _in_child(work, into)
    os.close(into)
    with contextlib.suppress(ProcessLookupError):
        os.setpgid(child, child)
    said, ended = _read(out, time.monotonic() + limit)
    os.close(out)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    lines = [json.loads(line) for line in said.split(b"\n")[:-1]]
    last = lines[-1] if lines else {}
    if last.get("done"):
        return last
    stage = last.get("stage", "start")
    if not ended:
        return {"failed": "timeout", "reason": f"more than {limit:.0f} s ({stage})"}
    return {"failed": "crash", "reason": f"{_how(status)} ({stage})"}


def _in_child(work, into):
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a kernel prints is no answer

    def say(what):
        os.write(into, json.dumps(what).encode() + b"\n")

    try:
        torch.set_grad_enabled(False)
        say(work(lambda stage: say({"stage": stage})) | {"done": True})
    except Wrong as error:
        say({"done": True, "failed": "wrong", "reason": str(error)})
    except BaseException as error:
        text = str(error).strip()
        line = next((each for each in text.splitlines() if "error" in each), text) or traceback.format_exc(limit=-1)
        say({"done": True, "failed": "error", "reason": f"{type(error).__name__}: {line}"[:REASON]})
    os._exit(0)


def _read(fd, deadline):
    """(what was said, whether the child has ended)"""
    data, poll = b"", select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(left * 1e3):
            more = os.read(fd, 1 << 16)
            if not more:
                return data, True
            data += more
    return data, False


def _how(status):
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


# -- orders ------------------------------------------------------------------------------------------------------------


def _sizes(order, say):
    say("input.py")
    given = _module("input.py")
    return {"sizes": {name: _bytes(given, shape) for name, shape in _shapes().items()}}


def _survey(order, say):
    """Shapes in the order given, the smallest first, as long as they are quick enough."""
    say("compile")
    kernel, given, reference = _module(order["source"]), _module("input.py"), _module("reference.py")
    shapes, device, clock, found = _shapes(), _device(), _Clock(), []
    for name in order["check"]:
        say(f"check of shape {name}")
        _check(kernel, reference, given, shapes[name], name, 0, device)
    for name in order["shapes"]:
        say(f"shape {name}")
        inputs = _inputs(given, shapes[name], 0, device)
        model = kernel.Model(**shapes[name]["init_kwargs"]).to(device)
        model(**_fresh(inputs))
        took = clock.time(model, _fresh(inputs))
        if took > LONGEST * 1e6:
            break
        found.append(name)
    return {"shapes": found}


def _compare(order, say):
    say("compile")
    kernels = {side: _module(order[side]) for side in ("trial", "incumbent")}
    given, reference, shapes, device = _module("input.py"), _module("reference.py"), _shapes(), _device()
    for name in order["check"]:
        say(f"check of shape {name}")
        _check(kernels["trial"], reference, given, shapes[name], name, order["seed"], device)
    clock, drawn, times = _Clock(), random.Random(order["seed"]), {}
    for name in order["shapes"]:
        say(f"times of shape {name}")
        inputs = _inputs(given, shapes[name], order["seed"], device)
        models = {side: each.Model(**shapes[name]["init_kwargs"]).to(device) for side, each in kernels.items()}
        for model in models.values():
            model(**_fresh(inputs))
        times[name] = _pairs(models, inputs, clock, order["repeats"], drawn)
    return {"times": times}


def _alone(order, say):
    say("compile")
    began, scratch = time.monotonic(), tempfile.mkdtemp()
    tempfile.tempdir = scratch
    kernel, given = _module(order["source"]), _module("input.py")
    seconds, shapes, device = time.monotonic() - began, _shapes(), _device()
    reference = _module("reference.py") if order["check"] else None
    for name in order["check"]:
        say(f"check of shape {name}")
        _check(kernel, reference, given, shapes[name], name, order["seed"], device)
    clock, times = _Clock(), {}
    for name in order["shapes"]:
        say(f"times of shape {name}")
        inputs = _inputs(given, shapes[name], order["seed"], device)
        model = kernel.Model(**shapes[name]["init_kwargs"]).to(device)
        model(**_fresh(inputs))
        times[name] = [clock.time(model, _fresh(inputs)) for _ in range(order["repeats"])]
    libraries = _libraries(scratch)
    shutil.rmtree(scratch, ignore_errors=True)
    return {"times": times, "libraries": libraries, "seconds": seconds}


def _libraries(folder):
    """SHA-256 of the shared libraries below a folder that are mapped into this process."""
    with open("/proc/self/maps") as maps:
        paths = {line.rstrip("\n").split(maxsplit=5)[-1] for line in maps if os.path.join(folder, "") in line}
    found = []
    for path in sorted(path for path in paths if ".so" in path):
        with open(path, "rb") as file:
            found.append(hashlib.sha256(file.read()).hexdigest())
    return found


def _pairs(models, inputs, clock, repeats, drawn):
    """[(incumbent, trial)] in microseconds, the two one after the other in an order that is drawn for each pair."""
    pairs, until = [], time.monotonic() + ROUND_SECONDS
    while len(pairs) < repeats and (len(pairs) < FEWEST or time.monotonic() < until):
        took = {side: clock.time(models[side], _fresh(inputs)) for side in drawn.sample(sorted(models), 2)}
        pairs.append((took["incumbent"], took["trial"]))
    return pairs


def _check(kernel, reference, given, shape, name, seed, device):
    cases = {"": lambda: given.make_inputs(**shape["input_kwargs"])}
    if hasattr(given, "corner_cases"):
        cases |= given.corner_cases(**shape["input_kwargs"])
    ours = kernel.Model(**shape["init_kwargs"]).to(device)
    theirs = reference.Model(**shape["init_kwargs"]).to(device)
    for case, make in cases.items():
        torch.manual_seed(seed)
        inputs = {key: value.to(device) for key, value in make().items()}
        got_from, expected_from = _fresh(inputs), _fresh(inputs)
        got, expected = _named(ours(**got_from)), _named(theirs(**expected_from))
        where = f"shape {name}{f', {case}' if case else ''}"
        if sorted(got) != sorted(expected):
            raise Wrong(f"{where}: outputs {sorted(got)}, expected {sorted(expected)}")
        for key in expected:
            _same(got[key], expected[key], f"{where}: {key}")
        for key in inputs:
            _same(got_from[key], expected_from[key], f"{where}: operand {key} after the call")


def _same(got, expected, where):
    """Raises Wrong unless `got` is near: 4 units in the last place of |expected| plus its root mean square.

    Float32 is asked for 2^-14 alone, since sums may run in any order.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise Wrong(f"{where}: {tuple(got.shape)} {got.dtype}, expected {tuple(expected.shape)} {expected.dtype}")
    if not expected.dtype.is_floating_point:
        if not torch.equal(got, expected):
            raise Wrong(f"{where}: values differ")
        return
    got, wide = got.double(), expected.double()
    near = (got == wide) | (got.isnan() & wide.isnan())
    scale = wide.abs() + wide[wide.isfinite()].square().mean().sqrt()
    error = torch.where(near, 0.0, (got - wide).abs() / scale.clamp_min(1e-300)).nan_to_num(nan=float("inf"))
    allowed = max(4 * torch.finfo(expected.dtype).eps, 2.0**-14)
    if error.numel() and float(error.max()) > allowed:
        raise Wrong(f"{where}: off by {float(error.max()):.2g} of its size, {allowed:.2g} is allowed")


# -- parts -------------------------------------------------------------------------------------------------------------


class _Clock:
    """Microseconds of a call with cold caches: by the monotonic clock, on a GPU between two events."""

    def __init__(self):
        self._library, self._other, self._touched = None, None, []
        if _device() == "cuda":
            cache = torch.cuda.get_device_properties(0).L2_cache_size
            self._other = torch.zeros(2 * cache, dtype=torch.uint8, device="cuda")
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            return
        if len(sys.argv) > 2:
            self._library, sweep = ctypes.CDLL(sys.argv[2]), int(sys.argv[3])
            for function in (self._library.atrex_flush, self._library.atrex_sweep):
                function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_size_t), None
            self._other = torch.zeros(sweep, dtype=torch.uint8)

    def time(self, model, inputs):
        self._evict([*self._touched, *inputs.values()])
        self._touched = []
        if _device() == "cuda":
            first, last = self._events
            torch.cuda._sleep(1_000_000)  # the launch is queued behind it, so the host's time is not measured
            first.record()
            outputs = model(**inputs)
            last.record()
            last.synchronize()
            took = 1e3 * first.elapsed_time(last)
        else:
            start = time.perf_counter_ns()
            outputs = model(**inputs)
            took = (time.perf_counter_ns() - start) / 1e3
        self._touched = list(_named(outputs).values())
        return max(took, 1e-3)

    def _evict(self, tensors):
        if _device() == "cuda":
            self._other.fill_(1)
        elif self._library is None:
            return
        elif self._other.numel():
            self._library.atrex_sweep(self._other.data_ptr(), self._other.numel())
        else:
            for each in tensors:
                self._library.atrex_flush(each.data_ptr(), each.nbytes)


def _device():
    return sys.argv[1]


def _module(source):
    """A file of this folder, or the text of a candidate."""
    path = source
    if "\n" in source:
        handle, path = tempfile.mkstemp(suffix=".py")
        with os.fdopen(handle, "w") as file:
            file.write(source)
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _shapes():
    with open("shapes.json") as file:
        return json.load(file)


def _inputs(given, shape, seed, device):
    torch.manual_seed(seed)
    return {name: value.to(device) for name, value in given.make_inputs(**shape["input_kwargs"]).items()}


def _bytes(given, shape):
    """Of the operands. Where inputs depend on values, which the meta device has not, they are made on the CPU."""
    try:
        with torch.device("meta"):
            made = given.make_inputs(**shape["input_kwargs"])
    except Exception:
        made = given.make_inputs(**shape["input_kwargs"])
    return sum(value.nbytes for value in made.values())


def _fresh(inputs):
    return {name: value.clone() for name, value in inputs.items()}


def _named(outputs):
    if isinstance(outputs, torch.Tensor):
        return {"out": outputs}
    return dict(outputs) if isinstance(outputs, dict) else {str(i): each for i, each in enumerate(outputs)}


if __name__ == "__main__":
    main()
