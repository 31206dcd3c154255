"""Splits the host time of a forward call between a candidate's built libraries and ATen.

Three doors lead into a built library, each watched: functions of a `ctypes.CDLL`, functions of an extension module
imported by `torch.utils.cpp_extension`, and operators that a library registers with the dispatcher. ATen operators
are timed one by one with a `TorchDispatchMode`, also when library code calls them; nested time is subtracted from the
caller. Nothing is timed until `begin`; until then a ctypes call pays nothing and an extension function one flag test.

Seen are calls on the thread that called `begin` (ATen) and on all threads (libraries). What that thread computes past
these doors (in NumPy, in a library called some other way, in Python itself) is `unknown`, as far as it exceeds what the
Python around a kernel takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import types
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atrex.dsls.attribution import Owner
from atrex.dsls.offline.replace import replace

# Bound here, before any candidate code could replace what these names stand for elsewhere.
_CALL_POINTER = ctypes._CFuncPtr.__call__
_CALL_OPERATOR = {cls: cls.__call__ for cls in (torch._ops.OpOverload, torch._ops.OpOverloadPacket)}

_BUILTIN_NAMESPACES = frozenset(
    ("aten", "prims", "prim", "quantized", "quantized_decomposed", "mkldnn", "mkldnn_prepacked", "onednn", "inductor")
    + ("c10d", "_c10d_functional", "higher_order", "profiler", "rngprims", "sparse", "static_runtime", "xnnpack")
)
ELSEWHERE = "past the watched libraries"
# Processor time that is nobody's: of the Python around a kernel on a cold cache, and on the way into a watched call.
ELSEWHERE_FREE_NS, ON_THE_WAY_NS = 800_000, 20_000
# Allocation and views start no kernel on a GPU either, so they count for nobody.
_ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::detach", "aten::alias", "aten::_unsafe_view")


class HostTime:
    """The recorder. `owner_of(path)` says whose a shared library is; None leaves it unwatched."""

    def __init__(self, owner_of: Callable[[str], Owner | None]):
        self.owner_of = owner_of
        self.armed = False
        self.called: set[str] = set()  # libraries entered while armed
        self.operators: set[str] = set()  # "namespace::name" registered by watched libraries
        self._totals: dict[tuple[str, Owner], int] = {}
        self._local = threading.local()
        self._pointer_classes: list[tuple[type, str, Owner]] = []
        self._mode: _Aten | None = None
        self._undo = contextlib.ExitStack()
        self._thread = 0
        self._begun = self._watched = 0  # processor time of that thread: at `begin`, and since in watched calls

    # -- accounting ----------------------------------------------------------------------------------------------

    def timed(self, name: str, owner: Owner, function: Callable, args: tuple, kwargs: dict) -> Any:
        """Call, and book the call's own time (without the watched calls inside it) under (name, owner)."""
        stack = self._stack()
        entered = self.enter()
        stack.append(0)
        start = perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            elapsed = perf_counter_ns() - start
            inner = stack.pop()
            self.leave(entered)
            if stack:
                stack[-1] += elapsed
            key = (name, owner)
            self._totals[key] = self._totals.get(key, 0) + elapsed - inner

    def exclude(self, elapsed: int) -> None:
        """Take time (ns) spent in bookkeeping or in no kernel out of the enclosing call."""
        stack = self._stack()
        if stack:
            stack[-1] += elapsed

    def enter(self) -> int | None:
        """Call before something watched; what comes goes to `leave`. Outermost calls on the measured thread count."""
        if threading.get_ident() != self._thread or getattr(self._local, "inside", False):
            return None
        self._local.inside = True
        return thread_time_ns()

    def leave(self, entered: int | None) -> None:
        if entered is not None:
            self._local.inside = False
            self._watched += thread_time_ns() - entered + ON_THE_WAY_NS

    def _stack(self) -> list[int]:
        try:
            return self._local.stack
        except AttributeError:
            self._local.stack = []
            return self._local.stack

    # -- switching -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Forget earlier figures and start timing."""
        self.armed = True
        for entry in self._pointer_classes:
            self._arm_pointers(*entry)
        if self.operators:
            self._arm_operators()
        self._mode = _Aten(self)
        self._mode.__enter__()
        torch.empty(1).zero_()  # the first dispatch through a mode takes a millisecond
        self._totals = {}
        self._thread, self._watched, self._local.inside = threading.get_ident(), 0, False
        self._begun = thread_time_ns()

    def end(self) -> list[dict]:
        """Stop timing; `{name, us, owner}` by name, the longest first."""
        elsewhere = thread_time_ns() - self._begun - self._watched - ELSEWHERE_FREE_NS
        self._thread = 0
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None
        self.armed = False
        for cls, _, _ in self._pointer_classes:
            if "__call__" in vars(cls):
                del cls.__call__
        for cls, original in _CALL_OPERATOR.items():
            cls.__call__ = original
        rows = [{"name": name, "us": ns / 1e3, "owner": owner} for (name, owner), ns in self._totals.items()]
        if elsewhere > 0:
            rows.append({"name": ELSEWHERE, "us": elsewhere / 1e3, "owner": "unknown"})
        return sorted(rows, key=lambda row: -row["us"])

    # -- the three doors -----------------------------------------------------------------------------------------

    def install(self) -> None:
        """Watch libraries loaded from now on."""
        import torch.utils.cpp_extension as extension

        load_cdll = ctypes.CDLL.__init__

        def init(library, name, *args, **kwargs):
            before = torch._C._dispatch_get_all_op_names() if not self._is_system(name) else None
            load_cdll(library, name, *args, **kwargs)
            if before is not None:
                self._watch_library(library, os.path.realpath(name), before)

        import_library = extension._import_module_from_library

        def import_and_watch(module_name, path, is_python_module):
            before = torch._C._dispatch_get_all_op_names()
            loaded = import_library(module_name, path, is_python_module)
            if is_python_module:
                file = os.path.realpath(loaded.__file__)
                self._note_operators(file, before)
                self._watch_module(loaded, file)
            return loaded

        replace(self._undo, ctypes.CDLL, "__init__", init)
        replace(self._undo, extension, "_import_module_from_library", import_and_watch)

    def uninstall(self) -> None:
        if self.armed:
            self.end()
        self._undo.close()

    def _is_system(self, name: Any) -> bool:
        return not isinstance(name, str | bytes | os.PathLike) or self.owner_of(os.path.realpath(name)) is None

    def _note_operators(self, path: str, before: list[str]) -> None:
        if self.owner_of(path) == "target":
            self.operators.update(set(torch._C._dispatch_get_all_op_names()) - set(before))

    def _watch_library(self, library: ctypes.CDLL, path: str, before: list[str]) -> None:
        self._note_operators(path, before)
        entry = (library._FuncPtr, path, self.owner_of(path))
        self._pointer_classes.append(entry)
        if self.armed:
            self._arm_pointers(*entry)

    def _arm_pointers(self, cls: type, path: str, owner: Owner) -> None:
        stem = os.path.basename(path)

        def call(pointer, *args):
            self.called.add(path)
            return self.timed(f"{stem}:{pointer.__name__}", owner, _CALL_POINTER, (pointer, *args), {})

        cls.__call__ = call

    def _watch_module(self, module: types.ModuleType, path: str) -> None:
        owner = self.owner_of(path)
        if owner is None:
            return
        stem = os.path.basename(path)
        for attribute, value in list(vars(module).items()):
            if isinstance(value, types.BuiltinFunctionType) or type(value).__name__ == "nb_func":
                setattr(module, attribute, self._wrap(value, f"{stem}:{attribute}", path, owner))

    def _wrap(self, function: Callable, name: str, path: str, owner: Owner) -> Callable:
        def call(*args, **kwargs):
            if self.armed:
                self.called.add(path)
                return self.timed(name, owner, function, args, kwargs)
            return function(*args, **kwargs)

        call.__doc__, call.__name__ = function.__doc__, getattr(function, "__name__", name)
        return call

    def _arm_operators(self) -> None:
        # Needed beside the dispatch mode: a composite operator runs above the key where the mode listens.
        registered = {name.split(".")[0] for name in self.operators}
        for cls, original in _CALL_OPERATOR.items():

            def call(operator, /, *args, _original=original, **kwargs):
                name = _qualified(operator)
                if name.split(".")[0] in registered:
                    return self.timed(name, "target", _original, (operator, *args), kwargs)
                return _original(operator, *args, **kwargs)

            cls.__call__ = call


def _qualified(operator: Any) -> str:
    return operator.name() if isinstance(operator, torch._ops.OpOverload) else operator._qualified_op_name


class _Aten(TorchDispatchMode):
    """Times every dispatched operator; operators of candidates are entered with the mode on, so that it sees inside."""

    def __init__(self, recorder: HostTime):
        super().__init__()
        self.recorder = recorder

    def _dispatch(self, func, types, args=(), kwargs=None):
        entered = perf_counter_ns()
        kwargs = kwargs or {}
        recorder = self.recorder
        stack = recorder._stack()
        booked = stack[-1] if stack else 0
        outermost = recorder.enter()
        try:
            name = func.name()
            if func.namespace not in _BUILTIN_NAMESPACES:
                return self._inside(func, name, args, kwargs)
            if func.is_view or name.startswith(_ALLOCATIONS):
                return func(*args, **kwargs)
            return recorder.timed(name, "torch", func, args, kwargs)
        finally:
            if stack and func.namespace in _BUILTIN_NAMESPACES:
                stack[-1] = booked
                recorder.exclude(perf_counter_ns() - entered)
            recorder.leave(outermost)

    def _inside(self, func, name: str, args: tuple, kwargs: dict) -> Any:
        cpu = torch._C.DispatchKey.CPU
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"):
            return func(*args, **kwargs)
        keys = torch._C.DispatchKeySet(cpu)
        with self:
            if name in self.recorder.operators:
                return self.recorder.timed(name, "target", func.redispatch, (keys, *args), kwargs)
            return func.redispatch(keys, *args, **kwargs)


# Set after the class was made: defined inside it, torch would wrap the method so that the first dispatch imports
# torch._dynamo, seconds that would be booked on the candidate.
_Aten.__torch_dispatch__ = _Aten._dispatch
