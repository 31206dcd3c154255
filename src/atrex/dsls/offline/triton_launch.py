"""Triton and Gluon without a device: a driver that says what the target is, compiles for it, and launches nothing.

`JITFunction.run` goes its own way: specialization, compilation, the check of shared memory, the launcher. Only the
last step, which would reach a device, is empty. Autotuners run every configuration once, and none is timed.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from atrex.dsls.offline.attempts import Attempts
from atrex.dsls.offline.replace import once, replace
from atrex.dsls.offline.target import Target

_THREADS = 1024  # the most that a block has on every architecture listed


@contextlib.contextmanager
def compiling(
    target: Target, log: Attempts, is_target: Callable[[Any], bool], binary: Callable[[Any], tuple[str, bytes]]
) -> Iterator[None]:
    """Compile for `target` until the end of the block; kernels for which `is_target` holds go to `log`.

    `is_target` and `binary` take a `CompiledKernel`; `binary` gives (kind, bytes).
    """
    import triton
    import triton.compiler
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner

    with contextlib.ExitStack() as undo:
        undo.callback(vars(driver).update, dict(vars(driver)))  # `active` itself would look for a device
        driver.set_active(Driver(target))
        replace(undo, Autotuner, "do_bench", property(lambda tuner: once))
        for module in (triton.testing, triton):
            for name in ("do_bench", "do_bench_cudagraph"):
                if hasattr(module, name):
                    replace(undo, module, name, once)

        compile_source = triton.compiler.compile

        def compile_and_note(src: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return compile_source(src, *args, **kwargs)
            except Exception as error:
                if is_target(_Unfinished(src)):
                    log.failed(_name(src), "hsaco" if target.backend == "hip" else "cubin", error)
                raise

        replace(undo, triton.compiler, "compile", compile_and_note)

        init_handles = CompiledKernel._init_handles

        def init_and_note(kernel: Any) -> None:
            try:
                init_handles(kernel)
            except Exception as error:  # OutOfResources: it would not load on the target
                if is_target(kernel):
                    log.failed(kernel.name, binary(kernel)[0], error)
                raise
            if getattr(kernel, "_atrex_noted", False):
                return
            kernel._atrex_noted = True
            name = "_run" if "_run" in vars(kernel) else "run"  # 3.4 has no property before it
            launch = vars(kernel)[name]

            def run(*args: Any, **kwargs: Any) -> Any:
                if is_target(kernel):
                    log.compiled(kernel.name, *binary(kernel))
                return launch(*args, **kwargs)

            setattr(kernel, name, run)

        replace(undo, CompiledKernel, "_init_handles", init_and_note)
        yield


def _name(src: Any) -> str:
    return getattr(src, "name", None) or getattr(getattr(src, "fn", None), "__name__", "kernel")


class _Unfinished:
    """In place of a CompiledKernel that was never completed."""

    def __init__(self, src: Any):
        self.src = src


class _Utils:
    def __init__(self, target: Target):
        self._target = target
        self._handles = itertools.count(1)

    def load_binary(self, name: str, kernel: bytes, shared: int, device: int) -> tuple:
        return object(), next(self._handles), 0, 0, _THREADS

    def unload_module(self, module: Any) -> None:
        pass

    def get_device_properties(self, device: int) -> dict[str, Any]:
        return {
            "max_shared_mem": self._target.shared_bytes,
            "multiprocessor_count": self._target.units or 1,
            "warpSize": self._target.warp_size,
        }

    def set_printf_fifo_size(self, size: int) -> None:
        pass


class _Launcher:
    def __init__(self, src: Any, metadata: Any):
        pass

    def __call__(self, x, y, z, stream, function, packed, metadata, enter, leave, *args) -> None:
        if enter is not None:
            enter(metadata)
        if leave is not None:
            leave(metadata)


class Driver:
    """What Triton asks of an active driver, answered for a chip that is not here."""

    launcher_cls = _Launcher

    def __init__(self, target: Target):
        self.utils = _Utils(target)
        self._target = target

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        if self._target.backend == "hip":
            return GPUTarget("hip", self._target.arch, self._target.warp_size)
        return GPUTarget("cuda", self._target.capability, self._target.warp_size)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return divmod(self._target.capability, 10)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_benchmarker(self) -> Callable:
        return once

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(1, dtype=torch.int32, device="cuda")

    def clear_cache(self, cache: Any) -> None:
        pass

    def is_active(self) -> bool:
        return True
