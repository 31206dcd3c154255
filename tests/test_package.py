"""What is packaged: every file that the code reads at run time, and nothing that was made beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import atrex

PACKAGE = Path(atrex.__file__).parent
ROOT = PACKAGE.parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist: ATREX_DIST, or one that is built here (from the sdist, as a user would)."""
    if "ATREX_DIST" in os.environ:
        return Path(os.environ["ATREX_DIST"])
    pytest.importorskip("build", reason="needs pip install build")
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("installed, not a checkout")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-2000:]
    return out


def sources() -> set[str]:
    """Every file of the package in the checkout, those behind links included."""
    found = set()
    for folder, folders, files in os.walk(PACKAGE, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found |= {(Path(folder) / name).relative_to(PACKAGE.parent).as_posix() for name in files}
    return found


def test_the_wheel_holds_every_file_of_the_package_and_no_other(dist: Path):
    (wheel,) = dist.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == sources()


def test_the_sdist_holds_what_builds_the_wheel_and_the_licence(dist: Path):
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    assert {f"src/{name}" for name in sources()} <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
