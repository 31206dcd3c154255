"""What a DSL must provide, the registry, and the guess of a candidate's DSL from its source."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrex.dsls.attribution import Owner, classify
from atrex.errors import UserError
from atrex.modules import import_all

if TYPE_CHECKING:
    from atrex.dsls.offline import Attempts, Target

_REGISTRY: dict[str, DSL] = {}


class Session:
    """What one worker process observes of one candidate. Made by `DSL.instrument` before the candidate is imported.

    `scratch` is the worker's private folder, `source` the candidate's file: only what is compiled from this file (or,
    for compiled extensions, built below `scratch`) belongs to the target.
    """

    def __init__(self, scratch: Path, source: Path):
        self.scratch = Path(scratch).resolve()
        self.source = Path(source).resolve()
        self.aside: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        """Entered around what compiles and uses no device: a judge then lets others have it."""

    def built_aside(self, build: Callable[..., Any]) -> Callable[..., Any]:
        """`build`, called within `aside`."""

        @functools.wraps(build)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.aside():
                return build(*args, **kwargs)

        return call

    def env(self) -> dict[str, str]:
        """Private caches below `scratch`, so that no candidate finds or leaves compiled code outside its own unit."""
        under = self.scratch / "caches"
        return {
            "TRITON_CACHE_DIR": str(under / "triton"),
            "TRITON_HOME": str(under / "triton-home"),
            "TORCH_EXTENSIONS_DIR": str(under / "torch-extensions"),
            "TORCHINDUCTOR_CACHE_DIR": str(under / "inductor"),
            "CUDA_CACHE_PATH": str(under / "cuda"),
            "TMPDIR": str(self.scratch / "tmp"),
        }

    def apply_env(self) -> None:
        """Set `env()` in this process. Triton, torch and tempfile read it late, so it also works after their import."""
        for name, value in self.env().items():
            Path(value).mkdir(parents=True, exist_ok=True)
            os.environ[name] = value
        tempfile.tempdir = None

    def artifacts(self) -> list[dict]:
        """Completed target artifacts that were launched: `{name, kind, sha256, bytes}` each."""
        raise NotImplementedError

    def missing(self) -> list[str]:
        """Names of target kernels that were launched without a completed artifact."""
        raise NotImplementedError

    def owner(self, kernel_name: str) -> Owner:
        """Whose a device kernel is, from the name (mangled or not) that the activity records carry."""
        return classify(kernel_name)

    def adoption_begin(self) -> None:
        """Start attributing host time. Only DSLs whose kernels run on the host measure here; others use CUPTI."""

    def adoption_end(self) -> list[dict]:
        """Stop, and give `{name, us, owner}` summed by name since `adoption_begin`."""
        return []

    def close(self) -> None:
        """Take every hook out again. A worker that ends need not call it."""


class DSL:
    """One target DSL. Subclasses set the class attributes and register themselves with `@register`."""

    name: str
    devices: tuple[str, ...]  # torch device types it runs on
    constraints: str  # what an author may and may not do, for prompts
    imports: tuple[str, ...] = ()  # dotted import prefixes that show a candidate to be written in it
    targets: tuple[str, ...] = ()  # what architectures that it compiles for begin with ("sm_9", "gfx94"), or "cpu"
    usual_target: str = "sm_90a"  # the one that a person who names none means
    package: str = ""  # the module that it needs, and how to install it
    install: str = ""

    def matches(self, imports: Iterable[str], tree: ast.Module) -> int:
        """How specifically the candidate's imports name this DSL: the longest matching prefix's length, 0 for none."""
        return max(
            (len(p) for p in self.imports for i in imports if i == p or i.startswith(p + ".")),
            default=0,
        )

    def preload(self) -> None:
        """Import, and use once, what every fork of this process can inherit. No device, no thread, no lasting file."""

    def instrument(self, scratch: Path, source: Path) -> Session:
        """Set private caches and hooks in this process; call before the candidate is imported."""
        raise NotImplementedError

    def compiles_for(self, target: Target) -> bool:
        """Whether the DSL has code for this target at all."""
        return any(target.arch.startswith(prefix) for prefix in self.targets)

    def lacks(self, target: Target) -> str | None:
        """What is missing here to compile for a target, and how to get it; None when nothing is."""
        if self.package and importlib.util.find_spec(self.package) is None:
            return f"{self.name} is not installed: {self.install}"
        return None

    def offline_env(self, target: Target, scratch: Path) -> dict[str, str]:
        """Environment that compiling for a target without a device needs, to be set before anything is imported."""
        return {}

    def device_errors(self) -> tuple[type[BaseException], ...]:
        """What the DSL's library raises when it asks for a device and there is none."""
        return ()

    def compiling(self, target: Target, session: Session, log: Attempts) -> AbstractContextManager[None]:
        """Until the end of the block, compile what the candidate launches for `target`, into `log`, and launch nothing.

        Tensors are fake then (`atrex.compile`). For a process of its own: hooks are global.
        """
        raise NotImplementedError


def register(cls: type[DSL]) -> type[DSL]:
    """Class decorator: make a DSL known under its name."""
    _REGISTRY[cls.name] = cls()
    return cls


def names() -> list[str]:
    """Known DSL names, sorted."""
    import_all("atrex.dsls")
    return sorted(_REGISTRY)


def get(name: str) -> DSL:
    """The DSL of this name; `UserError` that lists the known ones otherwise."""
    if name not in names():
        raise UserError(f"dsl: unknown {name!r}, expected one of {', '.join(names())}")
    return _REGISTRY[name]


def default_for(device: str) -> str:
    """The DSL assumed for a candidate that uses torch alone: cpp on the CPU, triton on a GPU."""
    return "cpp" if device.split(":")[0] == "cpu" else "triton"


def mentioned(source: str) -> dict[str, int]:
    """DSLs that a candidate's source text names by its imports, each with how specifically.

    A source that does not parse names none: the compile gate reports the syntax error.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    imports = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    found = {name: _REGISTRY[name].matches(imports, tree) for name in names()}
    return {name: score for name, score in found.items() if score}


def infer(source: str) -> str | None:
    """The DSL that a candidate's source text is written in, from its imports; None when they name none."""
    found = mentioned(source)
    return max(found, key=lambda name: (found[name], name)) if found else None
