"""Frozen releases of a suite: what each held, so that an edit of one is seen and refused."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atrex.errors import UserError

if TYPE_CHECKING:
    from atrex.problems.model import Suite

RELEASES = "releases.json"
EDITED = "+edited"
_NOT_CONTENT = ("suite.json", RELEASES, "__init__.py")


def content(folder: Path) -> dict[str, str]:
    """SHA-256 by path of everything that a score under this suite depends on: its files, and the chips' constants."""
    from atrex.hardware.chip import CHIPS

    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and name not in _NOT_CONTENT and "__pycache__" not in file.parts:
            found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
    for file in sorted(CHIPS.glob("*.json")):
        found[f"chips/{file.name}"] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def releases(folder: Path) -> dict[str, dict[str, Any]]:
    """The releases of a suite by version, oldest first. Raises UserError for an unreadable releases.json."""
    path = folder / RELEASES
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        if all(isinstance(entry["files"], dict) for entry in found.values()):
            return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise UserError(f"{path}: expected an object of releases by version, each with its files and their hashes")


def edited(folder: Path, version: str) -> list[str]:
    """Files that differ from what release `version` froze, missing and new ones too; [] if it is no release."""
    frozen = releases(folder).get(version)
    return [] if frozen is None else _differing(frozen["files"], content(folder))


def refuse_edits(suite: Suite) -> None:
    """Raise UserError when `suite` says that it is a release and is not what that release froze."""
    if suite.version.endswith(EDITED):
        version = suite.version.removesuffix(EDITED)
        files = edited(suite.folder, version)
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        raise UserError(
            f"{suite.folder.name}: release {version} is frozen and was edited: {', '.join(files[:3])}{more}; "
            "undo the edit or release a new version"
        )


def release(folder: Path, version: str, note: str) -> dict[str, Any]:
    """Freeze the suite as `version` and return the new entry.

    Raises UserError when `version` is frozen with another content, or when nothing has changed since the last release.
    """
    known = releases(folder)
    now = content(folder)
    if version in known:
        differing = _differing(known[version]["files"], now)
        if differing:
            raise UserError(
                f"release {version} is frozen and {differing[0]} differs from it"
                + (f", with {len(differing) - 1} more" if len(differing) > 1 else "")
                + "; give the edited suite a new version"
            )
        raise UserError(f"release {version} exists already, with this very content")
    last = next(reversed(known.values()), None)
    if last is not None and last["files"] == now:
        raise UserError(f"nothing has changed since release {next(reversed(known))}: a new version would say nothing")
    entry = {
        "date": datetime.date.today().isoformat(),
        "note": note,
        "hash": hashlib.sha256(json.dumps(now, sort_keys=True).encode()).hexdigest(),
        "changes": changes(last["files"] if last else {}, now),
        "files": now,
    }
    known[version] = entry
    (folder / RELEASES).write_text(json.dumps(known, indent=1) + "\n")
    about = folder / "suite.json"
    described = json.loads(about.read_text()) if about.exists() else {}
    about.write_text(json.dumps(described | {"version": version}, indent=2) + "\n")
    return entry


def changes(old: Mapping[str, str], new: Mapping[str, str]) -> dict[str, list[str]]:
    """What a release changes: operators added and removed, files changed otherwise."""
    before, after = ({name.split("/")[0] for name in files if "/" in name} for files in (old, new))
    rest = [n for n in _differing(old, new) if n.split("/")[0] not in before ^ after]
    return {"added": sorted(after - before), "removed": sorted(before - after), "changed": rest}


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
