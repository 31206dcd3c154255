"""CuTe DSL (NVIDIA's CUTLASS in Python): which kernels were traced from whose file, and the cubins they ended in.

Hooks (read in the source of 4.8.1): `generate_kernel_operands_and_types` is called with the Python function of every
kernel and the name that the kernel gets; `JitCompiledFunction.__init__` holds the finished module; `to` loads it before
its first launch and never again, so that a warm launch pays nothing. The names that activity records carry are the
symbols of the cubin.

Without a device the compiler runs to the end for CUTE_DSL_ARCH, and what `to` gives runs nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrex.dsls.attribution import Owner, classify
from atrex.dsls.base import DSL, Session, register
from atrex.dsls.elf import cubins, functions
from atrex.dsls.offline.replace import replace

if TYPE_CHECKING:
    from atrex.dsls.offline import Attempts, Target


@dataclass
class _Built:
    """One compiled launcher: a JitCompiledFunction, and whether it was loaded."""

    function: Any
    launched: bool = False

    @property
    def kernels(self) -> list[str]:
        return list(self.function.kernel_info or ())

    @functools.cached_property
    def code(self) -> bytes:
        return cubin(self.function)

    @functools.cached_property
    def symbols(self) -> set[str]:
        return functions(self.code)


class CutedslSession(Session):
    """Observes CuTe DSL in this process. A kernel belongs to the target when its function stands in the candidate."""

    def __init__(self, scratch: Path, source: Path):
        super().__init__(scratch, source)
        self._files: dict[str, str] = {}  # kernel name -> file of its function
        self._built: dict[int, _Built] = {}
        self._undo = contextlib.ExitStack()

    def env(self) -> dict[str, str]:
        return super().env() | {"CUTE_DSL_CACHE_DIR": str(self.scratch / "caches" / "cute")}

    def install(self) -> None:
        """Put the hooks in. Imports cutlass."""
        import cutlass.cute  # noqa: F401
        from cutlass.base_dsl.dsl import BaseDSL
        from cutlass.base_dsl.jit_executor import JitCompiledFunction
        from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

        trace = BaseDSL.generate_kernel_operands_and_types

        @functools.wraps(trace)
        def trace_and_note(dsl: Any, kernel_func: Any, kernel_name: str, *args: Any, **kwargs: Any) -> Any:
            self._files[kernel_name] = _file_of(kernel_func)
            return trace(dsl, kernel_func, kernel_name, *args, **kwargs)

        init = JitCompiledFunction.__init__

        @functools.wraps(init)
        def init_and_note(function: Any, *args: Any, **kwargs: Any) -> None:
            init(function, *args, **kwargs)
            self.of(function)

        load = CudaDialectJitCompiledFunction.to

        @functools.wraps(load)
        def load_and_note(function: Any, device: Any = None) -> Any:
            executor = load(function, device)
            self.of(function).launched = True
            return executor

        replace(self._undo, BaseDSL, "compile_and_cache", self.built_aside(BaseDSL.compile_and_cache))
        replace(self._undo, BaseDSL, "generate_kernel_operands_and_types", trace_and_note)
        replace(self._undo, JitCompiledFunction, "__init__", init_and_note)
        replace(self._undo, CudaDialectJitCompiledFunction, "to", load_and_note)

    def of(self, function: Any) -> _Built:
        """What is known of a JitCompiledFunction."""
        return self._built.setdefault(id(function), _Built(function))

    def is_target(self, kernel_name: str) -> bool:
        return self._files.get(kernel_name) == str(self.source)

    def _launched(self) -> Iterator[tuple[_Built, str]]:
        for built in self._built.values():
            if built.launched:
                yield from ((built, name) for name in built.kernels if self.is_target(name))

    def artifacts(self) -> list[dict]:
        found: dict[tuple[str, str], dict] = {}
        for built, name in self._launched():
            if name in built.symbols:
                digest = hashlib.sha256(built.code).hexdigest()
                found[name, digest] = {"name": name, "kind": "cubin", "sha256": digest, "bytes": len(built.code)}
        return list(found.values())

    def missing(self) -> list[str]:
        return sorted({name for built, name in self._launched() if name not in built.symbols})

    def owner(self, kernel_name: str) -> Owner:
        target = {name for name in self._files if self.is_target(name)}
        return classify(kernel_name, target, set(self._files) - target)

    def close(self) -> None:
        self._undo.close()


def _file_of(function: Any) -> str:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return os.path.realpath(function.__code__.co_filename)


def cubin(function: Any) -> bytes:
    """The cubin that a JitCompiledFunction's module carries; b"" when there is none."""
    from cutlass._mlir import ir

    found: list[bytes] = []

    def visit(op: Any) -> Any:
        if op.name == "llvm.mlir.global" and "value" in op.attributes:
            content = getattr(op.attributes["value"], "value_bytes", b"")
            found.extend(cubins(content))
        return ir.WalkResult.ADVANCE

    if function.ir_module is not None:
        function.ir_module.operation.walk(visit)
    return found[0] if found else b""


class _Nothing:
    """In place of an executor: takes what it is given and runs nothing."""

    def __init__(self, launched: Any):
        self._launched = launched

    def run_compiled_program(self, arguments: Any) -> int:
        self._launched()
        return 0

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        return self.run_compiled_program(args)


@register
class Cutedsl(DSL):
    """CuTe DSL on NVIDIA GPUs."""

    name = "cutedsl"
    devices = ("cuda",)
    imports = ("cutlass",)
    targets = ("sm_80", "sm_86", "sm_89", "sm_9", "sm_10", "sm_12")
    package = "cutlass"
    install = "pip install 'atrex[cutedsl]'"
    constraints = (
        "Write every computation as @cute.kernel functions defined in this one file and launched from a @cute.jit "
        "function; compile once per specialization with cute.compile and keep what it returns, since a plain call of a "
        "@cute.jit function traces again each time. torch may allocate outputs and take views; it must not compute. No "
        "vendor library, no CUTLASS kernels from elsewhere, no Triton, no kernels imported from other packages."
    )

    def instrument(self, scratch: Path, source: Path) -> CutedslSession:
        """Hooks into CuTe DSL if it is installed; without it no kernel can launch and the session stays empty."""
        session = CutedslSession(scratch, source)
        session.apply_env()
        with contextlib.suppress(ImportError):
            session.install()
        return session

    def offline_env(self, target: Target, scratch: Path) -> dict[str, str]:
        """The architecture; sm_90 and newer mean sm_90a and so on, without which there is neither TMA nor WGMMA."""
        given = target.name if target.name.startswith("sm_") else target.arch
        plain = given == target.arch and target.capability >= 90
        return {"CUTE_DSL_ARCH": f"{given}a" if plain else given}

    def device_errors(self) -> tuple[type[BaseException], ...]:
        from cuda.pathfinder import DynamicLibNotFoundError
        from cutlass.base_dsl.common import DSLCudaRuntimeError

        return DSLCudaRuntimeError, DynamicLibNotFoundError

    @contextlib.contextmanager
    def compiling(self, target: Target, session: CutedslSession, log: Attempts) -> Iterator[None]:
        import cutlass.utils
        from cutlass.base_dsl.dsl import BaseDSL
        from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

        def load(function: Any, device: Any = None) -> _Nothing:
            built = session.of(function)
            built.launched = True

            def launched() -> None:
                for name in built.kernels:
                    if session.is_target(name) and name in built.symbols:
                        log.compiled(name, "cubin", built.code)

            return _Nothing(launched)

        lower = BaseDSL._compile_or_jit_module

        def lower_and_note(dsl: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return lower(dsl, *args, **kwargs)
            except Exception as error:
                for name in dsl.kernel_info:
                    if session.is_target(name):
                        log.failed(name, "cubin", error)
                raise

        with contextlib.ExitStack() as undo:
            replace(undo, CudaDialectJitCompiledFunction, "to", load)
            replace(undo, BaseDSL, "_compile_or_jit_module", lower_and_note)
            replace(undo, cutlass.utils, "HardwareInfo", _hardware_info(target))
            yield


def _hardware_info(target: Target) -> type:
    """`cutlass.utils.HardwareInfo` for a chip that is not here; what only a device knows is absent."""
    chip = target.chip

    class HardwareInfo:
        def __init__(self, device_id: int = 0):
            self.device_id = device_id

        if chip is not None and chip.units is not None:

            def get_device_multiprocessor_count(self) -> int:
                return chip.units

            def get_max_active_clusters(self, cluster_size: int, *args: Any) -> int:
                return chip.units // cluster_size

        if chip is not None and chip.l2_bytes is not None:

            def get_l2_cache_size_in_bytes(self) -> int:
                return chip.l2_bytes

    return HardwareInfo
