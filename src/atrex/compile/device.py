"""A CUDA device that is not here: what torch says about it, and streams, events and synchronization that do nothing.

What launch code may ask (capability, number of multiprocessors, memory) comes from the target's chip file. What only
a device could answer raises `Undetermined`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from atrex.dsls.offline import Target, Undetermined
from atrex.dsls.offline.replace import replace

DEVICE = torch.device("cuda", 0)


class Stream:
    """A stream on which nothing runs."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any):
        self.device, self.priority = DEVICE, priority
        self.device_index, self.stream_id, self.cuda_stream = 0, 0, 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.cuda_stream

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    synchronize = wait_event = wait_stream = _nothing


class ExternalStream(Stream):
    pass


class Event:
    """An event that has happened. Between two of them lies one millisecond, so that a candidate's own timing loop
    compiles all it tries and chooses any."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.cuda_event = 0

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Event) -> float:
        return 1.0

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    record = wait = synchronize = _nothing


class _OnDevice(contextlib.nullcontext):
    """`torch.cuda.device`, `torch.cuda.device_of`, `torch.cuda.stream`: there is one device."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__()
        self.idx = self.prev_idx = 0


class _Indexed(TorchFunctionMode):
    """Gives "cuda" the index 0 before torch asks a device which one is current."""

    def __torch_function__(self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0].to(DEVICE)
        args = tuple(_indexed(x) for x in args)
        if "device" in kwargs:
            kwargs["device"] = _indexed(kwargs["device"])
        return func(*args, **kwargs)


def _indexed(x: Any) -> Any:
    if isinstance(x, torch.device) and x.type == "cuda":
        return DEVICE
    return DEVICE if isinstance(x, str) and x.split(":")[0] == "cuda" else x


def properties(target: Target) -> SimpleNamespace:
    """As torch.cuda.get_device_properties; figures that no source gives are absent, so that asking for them raises."""
    chip = target.chip
    known: dict[str, Any] = {
        "name": chip.name if chip else target.arch,
        "total_memory": chip.memory_bytes if chip else None,
        "multi_processor_count": target.units,
        "L2_cache_size": chip.l2_bytes if chip else None,
        "clock_rate": int(chip.max_clock_hz / 1e3) if chip and chip.max_clock_hz else None,
        "warp_size": target.warp_size,
        "shared_memory_per_block_optin": target.shared_bytes,
        "is_integrated": False,
        "is_multi_gpu_board": False,
    }
    known["major"], known["minor"] = capability(target)
    if target.backend == "hip":
        known["gcnArchName"] = target.arch
    return SimpleNamespace(**{name: value for name, value in known.items() if value is not None})


def capability(target: Target) -> tuple[int, int]:
    """As torch.cuda.get_device_capability: (9, 4) for gfx942, as ROCm's torch says."""
    if target.backend == "hip":
        digits = target.arch.removeprefix("gfx")
        return int(digits[:-2]), int(digits[-2], 16)
    return divmod(target.capability, 10)


def _uncompiled(model: Any = None, **options: Any) -> Any:
    """In place of torch.compile: what it would generate is no kernel of the candidate's own."""
    return model if model is not None else lambda function: function


def _refuse(what: str) -> Callable:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Undetermined(f"{what} needs a device")

    return refuse


def _class_that_refuses(what: str) -> type:
    return type(what.rpartition(".")[2], (), {"__init__": _refuse(what)})


@contextlib.contextmanager
def standing_in(target: Target) -> Iterator[None]:
    """Let `torch.cuda` speak for a device of `target` until the end of the block. For a process of its own."""
    ensure_device_guard()
    about = properties(target)
    memory = getattr(about, "total_memory", 64 << 30)

    def nothing(*args: Any, **kwargs: Any) -> None:
        pass

    def stream(*args: Any, **kwargs: Any) -> Stream:
        return Stream()

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: about.name,
        "get_device_capability": lambda device=None: capability(target),
        "get_device_properties": lambda device=None: about,
        "get_arch_list": lambda: [target.name],
        "is_bf16_supported": lambda *args, **kwargs: True,
        "mem_get_info": lambda device=None: (memory, memory),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "memory_reserved": lambda device=None: 0,
        "is_current_stream_capturing": lambda: False,
        "current_stream": stream,
        "default_stream": stream,
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "device": _OnDevice,
        "device_of": _OnDevice,
        "stream": _OnDevice,
        "CUDAGraph": _class_that_refuses("torch.cuda.CUDAGraph"),
        "graph": _class_that_refuses("torch.cuda.graph"),
        "_lazy_init": _refuse("this call"),
    }
    for name in ("init", "set_device", "set_stream", "synchronize", "empty_cache", "manual_seed", "_sleep"):
        answers[name] = nothing
    with contextlib.ExitStack() as undo:
        for name, answer in answers.items():
            replace(undo, torch.cuda, name, answer)
        replace(undo, torch._C, "_cuda_getCurrentRawStream", lambda index: 0)
        replace(undo, torch, "compile", _uncompiled)
        replace(undo, torch.version, "hip", "6.4" if target.backend == "hip" else None)
        replace(undo, torch.version, "cuda", "13.0" if target.backend == "cuda" else None)
        undo.enter_context(_Indexed())
        yield


_CUDA, _META = 1, 14  # c10::DeviceType


def ensure_device_guard() -> None:
    """Let a CPU build of torch index fake CUDA tensors: indexing asks for a guard of their device, and there is none.

    CUDA builds without a device get such a guard from FakeTensorMode. A CPU build has no entry for CUDA at all, so the
    one that guards meta tensors, which does nothing, is entered for it. Raises Undetermined where torch's library does
    not offer the table.
    """
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    try:
        library = ctypes.CDLL(os.path.join(folder, "libc10.so"))
        table = (ctypes.c_void_p * (_META + 1)).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
        register = library._ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE
    except (OSError, ValueError, AttributeError) as error:
        raise Undetermined(f"torch {torch.__version__} offers no way to guard a device that is not here") from error
    if table[_CUDA] is None:
        register.argtypes, register.restype = [ctypes.c_int8, ctypes.c_void_p], None
        register(_CUDA, table[_META])
