"""Blocks of memory that the judge and one worker both map: the way of inputs in and of outputs back.

A block holds what the worker may see and nothing else. On CUDA it is a raw driver allocation, never a piece of the
caching allocator's: an IPC handle maps the whole allocation it comes from. On the CPU it is a memfd.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

_CUDA_GRANULE = 2 << 20  # the driver backs smaller allocations by one shared 2 MiB page, which IPC would expose


class CudaDriverError(RuntimeError):
    """A CUDA driver call failed."""


@dataclass(frozen=True)
class _Calls:
    """The allocation and IPC calls of a device runtime: CUDA's driver, or HIP's runtime, which has the same ones."""

    library: ctypes.CDLL
    malloc: str
    free: str
    export: str
    open: str
    close: str
    out_of_memory: int = 2

    def __call__(self, what: str, *arguments: Any) -> int:
        return getattr(self.library, getattr(self, what))(*arguments)

    def text(self, code: int) -> str:
        if self.malloc == "hipMalloc":
            self.library.hipGetErrorString.restype = ctypes.c_char_p
            return (self.library.hipGetErrorString(code) or b"unknown").decode()
        found = ctypes.c_char_p()
        self.library.cuGetErrorString(code, ctypes.byref(found))
        return (found.value or b"unknown").decode()


@cache
def _runtime() -> _Calls:
    if torch.version.hip:
        return _Calls(
            ctypes.CDLL("libamdhip64.so"), "hipMalloc", "hipFree", "hipIpcGetMemHandle", "hipIpcOpenMemHandle",
            "hipIpcCloseMemHandle",
        )  # fmt: skip
    return _Calls(
        ctypes.CDLL("libcuda.so.1"), "cuMemAlloc_v2", "cuMemFree_v2", "cuIpcGetMemHandle", "cuIpcOpenMemHandle_v2",
        "cuIpcCloseMemHandle",
    )  # fmt: skip


class _IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_byte * 64)]


def _check(code: int, what: str) -> None:
    if code:
        raise CudaDriverError(f"{what}: {_runtime().text(code)} ({code})")


class _DeviceBytes:
    """Hands a device pointer to torch without a copy."""

    def __init__(self, pointer: int, nbytes: int):
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


def _tensor_at(pointer: int, nbytes: int, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(_DeviceBytes(pointer, nbytes), device=device)


class CudaBlock:
    """A raw device allocation of the judge's. `bytes` is it as a flat uint8 tensor."""

    def __init__(self, nbytes: int, device: torch.device):
        torch.cuda.current_stream(device)  # makes the primary context current
        self.nbytes = -(-nbytes // _CUDA_GRANULE) * _CUDA_GRANULE
        self._pointer = ctypes.c_uint64()
        code = _runtime()("malloc", ctypes.byref(self._pointer), ctypes.c_size_t(self.nbytes))
        if code == _runtime().out_of_memory:  # torch may sit on blocks that it does not use
            torch.cuda.empty_cache()
            code = _runtime()("malloc", ctypes.byref(self._pointer), ctypes.c_size_t(self.nbytes))
        _check(code, f"allocation of {self.nbytes} bytes")
        self.bytes = _tensor_at(self._pointer.value, self.nbytes, device)

    def export(self) -> tuple[dict[str, Any], list[int]]:
        """What `Attached` needs: a JSON part and descriptors."""
        handle = _IpcHandle()
        _check(_runtime()("export", ctypes.byref(handle), self._pointer), "export of a block")
        return {"kind": "cuda", "nbytes": self.nbytes, "handle": bytes(handle).hex()}, []

    def close(self) -> None:
        if self._pointer.value:
            torch.cuda.synchronize(self.bytes.device)
            self.bytes = None
            _check(_runtime()("free", self._pointer), "freeing a block")
            self._pointer.value = 0


class HostBlock:
    """Anonymous shared memory of the judge's. `bytes` is it as a flat uint8 tensor."""

    def __init__(self, nbytes: int, device: torch.device | None = None):
        self.nbytes = nbytes
        self._fd = os.memfd_create("atrex-block", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, nbytes)
        self.bytes = _map(self._fd, nbytes)

    def export(self) -> tuple[dict[str, Any], list[int]]:
        """What `Attached` needs: a JSON part and descriptors."""
        return {"kind": "host", "nbytes": self.nbytes}, [self._fd]

    def close(self) -> None:
        if self._fd >= 0:
            self.bytes = None
            os.close(self._fd)
            self._fd = -1


def _map(fd: int, nbytes: int) -> torch.Tensor:
    flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
    return torch.frombuffer(mmap.mmap(fd, nbytes, flags), dtype=torch.uint8)


def new_block(nbytes: int, device: torch.device) -> CudaBlock | HostBlock:
    """A block of at least `nbytes` on `device`. Raises CudaDriverError when the device has no room."""
    return CudaBlock(nbytes, device) if device.type == "cuda" else HostBlock(nbytes)


class Attached:
    """The worker's mapping of an exported block: `bytes` is a flat uint8 tensor, valid until `close`."""

    def __init__(self, spec: dict[str, Any], fds: list[int], device: torch.device):
        self._pointer = None
        if spec["kind"] == "host":
            (fd,) = fds
            self.bytes = _map(fd, spec["nbytes"])
            os.close(fd)
            return
        torch.cuda.current_stream(device)
        handle = _IpcHandle.from_buffer_copy(bytes.fromhex(spec["handle"]))
        self._pointer = ctypes.c_uint64()
        _check(_runtime()("open", ctypes.byref(self._pointer), handle, 1), "opening a block")
        self.bytes = _tensor_at(self._pointer.value, spec["nbytes"], device)

    def close(self) -> None:
        """Unmap; the owner may free the block only afterwards."""
        self.bytes = None
        if self._pointer is not None:
            torch.cuda.synchronize()
            _check(_runtime()("close", self._pointer), "closing a block")
