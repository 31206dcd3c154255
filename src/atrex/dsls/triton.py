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
from pathlib import Path
from typing import Any

from atrex.dsls.attribution import Owner, classify
from atrex.dsls.base import DSL, Session, register

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
        self._undo: list[Any] = []

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

        CompiledKernel.__init__ = init
        self._undo.append(lambda: setattr(CompiledKernel, "__init__", original))

        chain = getattr(knobs.runtime, "kernel_load_end_hook", None)
        if hasattr(chain, "add"):
            chain.add(self._on_load)
            self._undo.append(lambda: chain.remove(self._on_load))
            self._undo.append(lambda: self._watch_launches(False))
        else:
            self._install_load_without_hook(CompiledKernel)
        self._install_interpreter()

    def _install_load_without_hook(self, kernel_class: Any) -> None:
        original = kernel_class._init_handles

        @functools.wraps(original)
        def init_handles(kernel):
            fresh = kernel.module is None
            original(kernel)
            if fresh:
                self._launched.append(kernel)

        kernel_class._init_handles = init_handles
        self._undo.append(lambda: setattr(kernel_class, "_init_handles", original))

    def _install_interpreter(self) -> None:
        from triton.runtime.interpreter import GridExecutor

        original = GridExecutor.__call__

        @functools.wraps(original)
        def call(executor, *args, **kwargs):
            if self._is_candidate(executor.fn):
                self._interpreted.add(executor.fn.__name__)
            return original(executor, *args, **kwargs)

        GridExecutor.__call__ = call
        self._undo.append(lambda: setattr(GridExecutor, "__call__", original))

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

    def _is_target(self, kernel: Any) -> bool:
        jit = getattr(kernel.src, "fn", None)
        gluon = bool(getattr(jit, "is_gluon", lambda: False)())
        return gluon == self.gluon and self._is_candidate(getattr(jit, "fn", None))

    def artifacts(self) -> list[dict]:
        found: dict[str, dict] = {}
        for kernel in self._launched:
            kind, binary = _binary(kernel)
            if binary and self._is_target(kernel):
                digest = hashlib.sha256(binary).hexdigest()
                found[digest] = {"name": kernel.name, "kind": kind, "sha256": digest, "bytes": len(binary)}
        return list(found.values())

    def missing(self) -> list[str]:
        unfinished = {k.name for k in self._launched if self._is_target(k) and not _binary(k)[1]}
        return sorted(unfinished | self._interpreted)

    def owner(self, kernel_name: str) -> Owner:
        target, other = set(), set()
        for kernel in self._launched:
            (target if self._is_target(kernel) else other).add(kernel.name)
        return classify(kernel_name, target, other)

    def close(self) -> None:
        while self._undo:
            self._undo.pop()()


def _binary(kernel: Any) -> tuple[str, bytes]:
    for kind in _BINARIES:
        if kind in kernel.asm:
            return kind, kernel.asm[kind]
    return "", b""


@register
class Triton(DSL):
    """Triton on NVIDIA and AMD GPUs."""

    name = "triton"
    devices = ("cuda",)
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

    def instrument(self, scratch: Path, source: Path) -> TritonSession:
        """Hooks into Triton if it is installed; without it no kernel can launch and the session stays empty."""
        session = TritonSession(scratch, source)
        session.apply_env()
        try:
            session.install()
        except ImportError:
            session.close()
        return session
