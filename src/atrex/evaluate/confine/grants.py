"""Which paths a worker may read, and which below them it may not: Landlock only grants, so holes are cut by hand."""

from __future__ import annotations

import os
import shutil
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import atrex
from atrex.evaluate.confine.landlock import LIST, READ, Access

PACKAGE = Path(atrex.__file__).resolve().parent
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/proc", "/sys")
# Of /etc what loaders, compilers and drivers read. The rest is passwords and keys, which uid 0 could read.
_ETC = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group", "nsswitch.conf", "localtime", "timezone",
    "os-release", "debian_version", "alternatives", "mime.types", "locale.alias", "ssl/openssl.cnf",
    "nvidia", "OpenCL", "vulkan", "rocm", "amd-gpu",
)  # fmt: skip
_PRIVATE = ("/sys/kernel/debug", "/sys/kernel/tracing")
_TOOLS = ("g++", "gcc", "c++", "clang++", "ninja", "ld.lld")
_TOOLKITS = ("nvcc", "hipcc")  # programs that need the folder above their own
_PATH_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "LD_LIBRARY_PATH")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_GPUS = ("nvidia", "kfd", "dri", "dxg")  # what the names of the device nodes begin with


def gpu_nodes() -> list[str]:
    """Device nodes and folders of NVIDIA's and AMD's drivers."""
    return sorted(f"/dev/{name}" for name in os.listdir("/dev") if name.startswith(_GPUS))


def read_roots() -> list[str]:
    """Folders and files that a worker reads and runs: system, interpreter, packages, compilers, this package's code."""
    found = [Path(path) for path in (*_SYSTEM, *(f"/etc/{name}" for name in _ETC))]
    found += [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent, PACKAGE]
    found += map(Path, (*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()))
    for name in _PATH_VARIABLES:
        found += [Path(part) for part in os.environ.get(name, "").split(os.pathsep) if part]
    tools = [os.environ[name] for name in ("CC", "CXX") if name in os.environ]
    found += [Path(path).resolve() for name in (*_TOOLS, *tools) if (path := shutil.which(name))]
    found += [Path(path).resolve().parent.parent for name in _TOOLKITS if (path := shutil.which(name))]
    return _real(found)


def installed_roots(paths: Iterable[str]) -> list[str]:
    """Those entries of an import path into which packages were installed."""
    return _real(Path(path) for path in paths if any(Path(path).glob("*.dist-info")))


def imported_roots() -> list[str]:
    """Where the packages lie that this process has imported: those of editable installs lie anywhere."""
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and "." not in name and name not in ("__main__", "atrex"):
            path = Path(file)
            found.append(path.parent if path.name == "__init__.py" else path)
    return _real(found)


def _real(paths: Iterable[Path]) -> list[str]:
    """Real paths of what exists; never the whole file system, a home or a folder where everyone writes."""
    never = {Path("/"), Path("/home"), Path("/root"), Path("/tmp"), Path("/var/tmp"), Path.home().resolve()}
    return sorted(
        {str(path.resolve()) for path in paths if path.is_absolute() and path.exists()} - set(map(str, never))
    )


def holes() -> list[str]:
    """What no worker reads although it may lie below a root: the suite, and the checkout with runs and results."""
    found = [*_PRIVATE, str(PACKAGE / "suite")]
    checkout = PACKAGE.parent.parent
    if (checkout / "pyproject.toml").exists():
        found.append(str(checkout))
    return found


def rules(roots: Iterable[str], hidden: Iterable[str]) -> Iterator[tuple[str, Access]]:
    """(path, rights) for reading `roots` without what is `hidden`; all are real paths.

    A folder that holds something hidden is granted entry by entry; its names, and those below it, can be listed. A
    hidden folder may itself contain a root (a virtual environment in a checkout): what is named is granted.
    """
    hidden = set(hidden)
    above = {str(parent) for path in hidden for parent in Path(path).parents}
    for root in roots:
        yield from _rules(root, hidden - {root}, above)


def _rules(path: str, hidden: set[str], above: set[str]) -> Iterator[tuple[str, Access]]:
    if path in hidden:
        return
    if path not in above:
        yield path, READ
        return
    yield path, LIST
    try:
        entries = [entry for entry in os.scandir(path) if not entry.is_symlink()]
    except OSError:
        return
    for entry in entries:
        yield from _rules(entry.path, hidden, above)
