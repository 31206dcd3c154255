"""What launch code asks of a fake tensor beyond shape and dtype: an address, a DLPack capsule, known values.

Addresses are invented: each storage has its own, aligned at least as well as the caching allocator's (512 bytes), so
that a view at an offset is as aligned as it would be on a device. Nothing is ever read from them. Whoever takes an
address may write there, so what was known of the values is forgotten then.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from atrex.compile.values import KnownValues
from atrex.dsls.offline import Target, Undetermined
from atrex.dsls.offline.replace import replace

_FIRST, _APART = 1 << 40, 1 << 34
_CUDA, _ROCM = 2, 10  # DLDeviceType
_SIGNED, _UNSIGNED, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLDataTypeCode
_FP8 = {"float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12, "float8_e5m2fnuz": 13}


class Addresses:
    """Invented addresses by storage."""

    def __init__(self) -> None:
        self._next = itertools.count(_FIRST, _APART)
        self._of: dict[int, int] = {}

    def of(self, tensor: torch.Tensor) -> int:
        """The address of a tensor's first element."""
        key = tensor.untyped_storage()._cdata
        if key not in self._of:
            self._of[key] = next(self._next)
        return self._of[key] + tensor.storage_offset() * tensor.element_size()


@contextlib.contextmanager
def given(target: Target, values: KnownValues) -> Iterator[None]:
    """Give fake tensors addresses, DLPack capsules, and their known values on the host, until the end of the block."""
    addresses = Addresses()
    device = (_ROCM if target.backend == "hip" else _CUDA, 0)

    def on_host(tensor: torch.Tensor, read: Callable[[torch.Tensor], Any]) -> Any:
        found = values.value(tensor)
        if found is None:
            raise Undetermined("the candidate reads values that only a device can compute")
        with torch._C._DisableTorchDispatch():
            return read(found)

    def address(tensor: torch.Tensor) -> int:
        values.forget(tensor)
        return addresses.of(tensor)

    def dlpack(tensor: torch.Tensor, **kwargs: Any) -> Any:
        return capsule(tensor, address(tensor), device)

    methods: dict[str, Callable] = {
        "data_ptr": address,
        "__dlpack__": dlpack,
        "__dlpack_device__": lambda tensor: device,
        "numpy": lambda tensor, **kwargs: on_host(tensor, lambda x: x.numpy(**kwargs)),
        "tolist": lambda tensor: on_host(tensor, torch.Tensor.tolist),
        "record_stream": lambda tensor, stream: None,
        "pin_memory": lambda tensor, *args: tensor,
    }
    with contextlib.ExitStack() as undo:
        for name, method in methods.items():
            replace(undo, FakeTensor, name, method)
        yield


# -- DLPack (dlpack.h, version 0.8: the unversioned capsule that every consumer takes) -------------------------------


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    pass


_DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(_DLManagedTensor))
_DLManagedTensor._fields_ = [("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", _DELETER)]
_alive: dict[int, tuple] = {}


@_DELETER
def _delete(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents), None)


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_NAME = b"dltensor"


def capsule(tensor: torch.Tensor, address: int, device: tuple[int, int]) -> Any:
    """A DLPack capsule that describes `tensor` at `address` on `device` (DLDeviceType, index)."""
    rank = max(1, tensor.dim())
    shape, strides = (ctypes.c_int64 * rank)(*tensor.shape), (ctypes.c_int64 * rank)(*tensor.stride())
    managed = _DLManagedTensor()
    described = managed.tensor
    described.data = address
    described.device_type, described.device_id = device
    described.ndim = tensor.dim()
    described.code, described.bits, described.lanes = _code(tensor.dtype), 8 * tensor.element_size(), 1
    described.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    described.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    managed.deleter = _delete
    where = ctypes.addressof(managed)
    _alive[where] = (managed, shape, strides)
    return _new_capsule(where, _NAME, None)


def _code(dtype: torch.dtype) -> int:
    name = str(dtype).removeprefix("torch.")
    if name in _FP8:
        return _FP8[name]
    if dtype is torch.bfloat16:
        return _BFLOAT
    if dtype is torch.bool:
        return _BOOL
    if dtype.is_complex:
        return _COMPLEX
    if dtype.is_floating_point:
        return _FLOAT
    return _SIGNED if dtype.is_signed else _UNSIGNED
