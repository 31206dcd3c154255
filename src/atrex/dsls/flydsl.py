"""FlyDSL on AMD GPUs: which kernels were traced from whose file, and the code objects they ended in.

Hooks (read in the source of 0.5.0): `KernelFunction._emit_kernel` gives a kernel its name while a launcher is traced,
`JitFunction._compile_or_execute` leaves the artifact of that trace in `_last_compiled`, and
`CompiledArtifact._get_func_exe` is what every first launch of an artifact fetches its entry point from. A call of a
compiled function passes none of them, so that a warm launch pays nothing. The names that activity records carry are
the symbols of the code object.

Without a device the pipeline runs to the end for the asked architecture, with LLVM's ld.lld as its linker, and the
entry point is one that does nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrex.dsls.attribution import Owner, classify
from atrex.dsls.base import DSL, Session, register
from atrex.dsls.elf import functions
from atrex.dsls.offline.linker import find_linker
from atrex.dsls.offline.replace import once, replace

if TYPE_CHECKING:
    from atrex.dsls.offline import Attempts, Target

_LDS = re.compile(r'#gpu\.kernel_metadata<"([^"]+)"[^}]*?group_segment_fixed_size = (\d+)')


@dataclass
class _Built:
    """One artifact: the kernels that were emitted for it, by name, each with the file that its function stands in."""

    artifact: Any
    kernels: dict[str, str] = field(default_factory=dict)
    launched: bool = False

    @functools.cached_property
    def code(self) -> bytes:
        return code_object(self.artifact)

    @functools.cached_property
    def symbols(self) -> set[str]:
        return functions(self.code)

    @functools.cached_property
    def shared_bytes(self) -> dict[str, int]:
        """LDS that each kernel takes, as the compiler's own metadata says."""
        return {name: int(size) for name, size in _LDS.findall(self.artifact._ir_text)}


class FlydslSession(Session):
    """Observes FlyDSL in this process. A kernel belongs to the target when its function stands in the candidate."""

    def __init__(self, scratch: Path, source: Path):
        super().__init__(scratch, source)
        self._built: dict[int, _Built] = {}
        self.emitted: dict[str, str] = {}
        self._undo = contextlib.ExitStack()
        self.fetch: Callable[[Any], Any] = lambda artifact: None

    def env(self) -> dict[str, str]:
        return super().env() | {"FLYDSL_RUNTIME_CACHE_DIR": str(self.scratch / "caches" / "flydsl")}

    def install(self) -> None:
        """Put the hooks in. Imports flydsl."""
        from flydsl.compiler.jit_executor import CompiledArtifact
        from flydsl.compiler.jit_function import JitFunction
        from flydsl.compiler.kernel_function import KernelFunction

        emit = KernelFunction._emit_kernel

        @functools.wraps(emit)
        def emit_and_note(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            made = emit(kernel, *args, **kwargs)
            self.emitted[made[0]] = os.path.realpath(kernel._func.__code__.co_filename)
            return made

        compile_or_execute = JitFunction._compile_or_execute

        @functools.wraps(compile_or_execute)
        def compile_and_note(launcher: Any, *args: Any, **kwargs: Any) -> Any:
            self.emitted = {}
            try:
                return compile_or_execute(launcher, *args, **kwargs)
            finally:
                self._note(launcher)

        self.fetch = CompiledArtifact._get_func_exe

        @functools.wraps(self.fetch)
        def fetch_and_note(artifact: Any) -> Any:
            entry = self.fetch(artifact)
            built = self.of(artifact)
            built.kernels.update(self.emitted)
            built.launched = True
            return entry

        for owner, name, hook in (
            (KernelFunction, "_emit_kernel", emit_and_note),
            (JitFunction, "_compile_or_execute", compile_and_note),
            (CompiledArtifact, "_get_func_exe", fetch_and_note),
        ):
            replace(self._undo, owner, name, hook)

    def _note(self, launcher: Any) -> None:
        if self.emitted and launcher._last_compiled is not None:
            self.of(launcher._last_compiled[1]).kernels.update(self.emitted)
        self.emitted = {}

    def of(self, artifact: Any) -> _Built:
        return self._built.setdefault(id(artifact), _Built(artifact))

    def is_target(self, file: str) -> bool:
        return file == str(self.source)

    def _of_target(self) -> Iterator[tuple[_Built, str]]:
        for built in self._built.values():
            if built.launched:
                yield from ((built, name) for name, file in built.kernels.items() if self.is_target(file))

    def artifacts(self) -> list[dict]:
        found: dict[tuple[str, str], dict] = {}
        for built, name in self._of_target():
            if name in built.symbols:
                digest = hashlib.sha256(built.code).hexdigest()
                found[name, digest] = {"name": name, "kind": "hsaco", "sha256": digest, "bytes": len(built.code)}
        return list(found.values())

    def missing(self) -> list[str]:
        return sorted({name for built, name in self._of_target() if name not in built.symbols})

    def owner(self, kernel_name: str) -> Owner:
        target, other = set(), set()
        for built in self._built.values():
            for name, file in built.kernels.items():
                (target if self.is_target(file) else other).add(name)
        return classify(kernel_name.removesuffix(".kd"), target, other)

    def close(self) -> None:
        self._undo.close()


def code_object(artifact: Any) -> bytes:
    """The code object that a CompiledArtifact loads; b"" when there is none."""
    from flydsl._mlir import ir
    from flydsl._mlir.dialects import gpu
    from flydsl.compiler.jit_function import _create_mlir_context

    found: list[bytes] = []

    def visit(op: Any) -> Any:
        if op.name == "gpu.binary":
            objects = ir.ArrayAttr(op.attributes["objects"])
            found.append(bytes(gpu.ObjectAttr(objects[0]).object))
        return ir.WalkResult.ADVANCE

    with _create_mlir_context():
        ir.Module.parse(artifact._ir_text).operation.walk(visit)
    return found[0] if found else b""


@register
class Flydsl(DSL):
    """FlyDSL on AMD GPUs."""

    name = "flydsl"
    devices = ("cuda",)
    imports = ("flydsl",)
    targets = ("gfx942", "gfx950")
    usual_target = "gfx942"
    package = "flydsl"
    install = "pip install 'atrex[flydsl]'"
    constraints = (
        "Write every computation as @flyc.kernel functions defined in this one file and launched from a @flyc.jit "
        "function; compile once per specialization with flyc.compile and keep what it returns, since a plain call of a "
        "@flyc.jit function traces again each time. A wave has 64 lanes. torch may allocate outputs and take views; it "
        "must not compute. No vendor library (AITER, hipBLASLt), no Triton, no kernels imported from other packages."
    )

    def instrument(self, scratch: Path, source: Path) -> FlydslSession:
        """Hooks into FlyDSL if it is installed; without it no kernel can launch and the session stays empty."""
        session = FlydslSession(scratch, source)
        session.apply_env()
        with contextlib.suppress(ImportError):
            session.install()
        return session

    def lacks(self, target: Target) -> str | None:
        if found := super().lacks(target):
            return found
        if find_linker() is None:
            return "flydsl needs LLVM's ld.lld, 19 or newer: apt-get install lld-19, or set ROCM_PATH"
        return None

    def offline_env(self, target: Target, scratch: Path) -> dict[str, str]:
        """FlyDSL calls $ROCM_PATH/llvm/bin/ld.lld: a folder of that form around whichever linker is here."""
        root = scratch / "rocm"
        (root / "llvm" / "bin").mkdir(parents=True, exist_ok=True)
        (root / "llvm" / "bin" / "ld.lld").symlink_to(find_linker())
        installed = Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "amdgcn"
        if installed.is_dir():
            (root / "amdgcn").symlink_to(installed)
        else:
            (root / "amdgcn" / "bitcode").mkdir(parents=True, exist_ok=True)
        return {"ROCM_PATH": str(root), "FLYDSL_GPU_ARCH": target.arch, "ARCH": target.arch}

    @contextlib.contextmanager
    def compiling(self, target: Target, session: FlydslSession, log: Attempts) -> Iterator[None]:
        from flydsl import autotune
        from flydsl.compiler.jit_function import MlirCompiler

        def note(built: _Built) -> None:
            for name, file in built.kernels.items():
                if session.is_target(file) and name in built.symbols:
                    if (taken := built.shared_bytes.get(name, 0)) > target.shared_bytes:
                        error = RuntimeError(
                            f"{name} takes {taken} bytes of LDS, {target.arch} has {target.shared_bytes}"
                        )
                        log.failed(name, "hsaco", error)
                        raise error  # as the driver would refuse to load it
                    log.compiled(name, "hsaco", built.code)

        compile_module = MlirCompiler.compile.__func__

        def compile_and_note(cls: Any, asm: str, *, func_name: str, config: Any) -> Any:
            try:
                return compile_module(cls, asm, func_name=func_name, config=config)
            except Exception as error:
                for name, file in session.emitted.items():
                    if session.is_target(file):
                        log.failed(name, "hsaco", error)
                raise

        with contextlib.ExitStack() as undo:
            replace(undo, MlirCompiler, "compile", classmethod(compile_and_note))
            replace(undo, autotune, "do_bench", once)
            session.fetch = lambda artifact: lambda packed: note(session.of(artifact))
            yield
