"""Triton: records what the compiler produced and what was launched, from hooks that Triton itself offers.

Seen are kernels of `triton.jit` and `triton.autotune`, compiled or served from the disk cache, launched through the
JIT or as a handle, also under graph capture. A kernel belongs to the target when the function it was compiled from
stands in the candidate's own file; kernels of imported packages and of torch.compile are `dsl`.

Hooks, by version (read in the sources of 3.4.0, 3.6.0 and 3.9.0): `CompiledKernel.__init__` runs once for every
specialization, compiled or cached. In 3.6 and 3.9 `knobs.runtime.kernel_load_end_hook` and `launch_enter_hook` are
chains; the launch hook stays in its chain only while a loaded specialization has not been launched, so a warm launch
pays nothing. 3.4 has no load hook, and its launch hook does not see the first launch; there `_init_handles`, which runs
on the launch path, counts as the launch. Which way to go is decided by whether the load hook is a chain.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrex.dsls.attribution import Owner, classify
from atrex.dsls.base import DSL, Session, register
from atrex.dsls.offline.linker import find_linker
from atrex.dsls.offline.replace import replace

if TYPE_CHECKING:
    from atrex.dsls.offline import Attempts, Target

_BINARIES = ("cubin", "hsaco")


class TritonSession(Session):
    """Observes Triton in this process; see the module's docstring. `gluon` selects Gluon kernels as the target."""

    gluon = False

    def __init__(self, scratch: Path, source: Path):
        super().__init__(scratch, source)
        self._compiled: dict[str, list[Any]] = {}  # hash -> CompiledKernel objects
        self._loaded: dict[int, Any] = {}  # function handle -> CompiledKernel, not launched yet
        self._launched: list[Any] = []
        self._interpreted: set[str] = set()  # target functions run by the interpreter: no artifact exists
        self._undo = contextlib.ExitStack()

    # -- hooks ---------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Put the hooks in. Imports triton."""
        from triton import knobs
        from triton.compiler.compiler import CompiledKernel

        original = CompiledKernel.__init__

        @functools.wraps(original)
        def init(kernel, *args, **kwargs):
            original(kernel, *args, **kwargs)
            self._compiled.setdefault(kernel.hash, []).append(kernel)

        replace(self._undo, CompiledKernel, "__init__", init)
        self._install_aside()

        chain = getattr(knobs.runtime, "kernel_load_end_hook", None)
        if hasattr(chain, "add"):
            chain.add(self._on_load)
            self._undo.callback(chain.remove, self._on_load)
            self._undo.callback(self._watch_launches, False)
        else:
            self._install_load_without_hook(CompiledKernel)
        self._install_interpreter()

    def _install_aside(self) -> None:
        """Every JIT function takes its compiler from `triton.compiler` when it is first launched."""
        from triton import compiler

        replace(self._undo, compiler, "compile", self.built_aside(compiler.compile))

    def _install_load_without_hook(self, kernel_class: Any) -> None:
        original = kernel_class._init_handles

        @functools.wraps(original)
        def init_handles(kernel):
            fresh = kernel.module is None
            original(kernel)
            if fresh:
                self._launched.append(kernel)

        replace(self._undo, kernel_class, "_init_handles", init_handles)

    def _install_interpreter(self) -> None:
        from triton.runtime.interpreter import GridExecutor

        original = GridExecutor.__call__

        @functools.wraps(original)
        def call(executor, *args, **kwargs):
            if self._is_candidate(executor.fn):
                self._interpreted.add(executor.fn.__name__)
            return original(executor, *args, **kwargs)

        replace(self._undo, GridExecutor, "__call__", call)

    def _on_load(self, module, function, name, metadata_group, hash) -> None:
        kernel = next((k for k in self._compiled.get(hash, ()) if k.function == function), None)
        if kernel is not None:
            self._loaded[function] = kernel
            self._watch_launches(True)

    def _on_launch(self, metadata) -> None:
        kernel = self._loaded.pop(metadata.data.get("function"), None)
        if kernel is not None:
            self._launched.append(kernel)
            if not self._loaded:
                self._watch_launches(False)

    def _watch_launches(self, on: bool) -> None:
        from triton import knobs

        chain = knobs.runtime.launch_enter_hook
        # A new list, because this runs while the chain iterates over the old one.
        chain.calls = [c for c in chain.calls if c != self._on_launch] + ([self._on_launch] if on else [])

    # -- what was seen -------------------------------------------------------------------------------------------

    def _is_candidate(self, function: Any) -> bool:
        code = getattr(function, "__code__", None)
        return code is not None and os.path.realpath(code.co_filename) == str(self.source)

    def is_target(self, kernel: Any) -> bool:
        """Whether a CompiledKernel was compiled from a function of the target DSL in the candidate's own file."""
        jit = getattr(kernel.src, "fn", None)
        gluon = bool(getattr(jit, "is_gluon", lambda: False)())
        return gluon == self.gluon and self._is_candidate(getattr(jit, "fn", None))

    def artifacts(self) -> list[dict]:
        found: dict[str, dict] = {}
        for kernel in self._launched:
            kind, data = binary(kernel)
            if data and self.is_target(kernel):
                digest = hashlib.sha256(data).hexdigest()
                found[digest] = {"name": kernel.name, "kind": kind, "sha256": digest, "bytes": len(data)}
        return list(found.values())

    def missing(self) -> list[str]:
        unfinished = {k.name for k in self._launched if self.is_target(k) and not binary(k)[1]}
        return sorted(unfinished | self._interpreted)

    def launched_names(self) -> set[str]:
        """Names of all kernels that went through Triton's launcher, whosever they are."""
        return {kernel.name for kernel in self._launched}

    def owner(self, kernel_name: str) -> Owner:
        target, other = set(), set()
        for kernel in self._launched:
            (target if self.is_target(kernel) else other).add(kernel.name)
        return classify(kernel_name, target, other)

    def close(self) -> None:
        self._undo.close()


def binary(kernel: Any) -> tuple[str, bytes]:
    """Kind ("cubin", "hsaco") and content of a CompiledKernel's binary; ("", b"") when there is none."""
    for kind in _BINARIES:
        if kind in kernel.asm:
            return kind, kernel.asm[kind]
    return "", b""


class TritonFamily(DSL):
    """What Triton and Gluon have in common: the compiler, its hooks, and how it is made to compile without a device."""

    devices = ("cuda",)
    targets = ("sm_80", "sm_86", "sm_89", "sm_9", "sm_10", "sm_12", "gfx942", "gfx950")
    package = "triton"
    install = "pip install 'atrex[triton]'"
    session: type[TritonSession] = TritonSession

    def instrument(self, scratch: Path, source: Path) -> TritonSession:
        """Hooks into Triton if it is installed; without it no kernel can launch and the session stays empty."""
        session = self.session(scratch, source)
        session.apply_env()
        try:
            session.install()
        except ImportError:
            session.close()
        return session

    def offline_env(self, target: Target, scratch: Path) -> dict[str, str]:
        """Before 3.5 Triton links AMD code objects with a linker from outside."""
        linker = find_linker() if target.backend == "hip" else None
        return {"TRITON_HIP_LLD_PATH": linker} if linker else {}

    def compiling(self, target: Target, session: TritonSession, log: Attempts) -> AbstractContextManager[None]:
        from atrex.dsls.offline.triton_launch import compiling

        return compiling(target, log, session.is_target, binary)


@register
class Triton(TritonFamily):
    """Triton on NVIDIA and AMD GPUs."""

    name = "triton"
    imports = ("triton",)
    constraints = (
        "Write every computation as @triton.jit kernels defined in this one file. torch may allocate outputs and take "
        "views; it must not compute. No vendor library, no torch.compile, no kernels imported from other packages."
    )

    def preload(self) -> None:
        """Compile an empty kernel for a chip that need not be here: most of a first compilation is imports."""
        try:
            import triton
            from triton import knobs
            from triton.backends.compiler import GPUTarget
            from triton.compiler import ASTSource

            from atrex.hardware.empty_kernel import empty_kernel
        except ImportError:
            return
        with tempfile.TemporaryDirectory() as cache, knobs.cache.scope():
            knobs.cache.dir = cache
            source = ASTSource(fn=empty_kernel, signature={}, constexprs={})
            with contextlib.suppress(Exception):  # a build without this target has nothing to inherit here
                triton.compile(source, target=GPUTarget("cuda", 90, 32))
