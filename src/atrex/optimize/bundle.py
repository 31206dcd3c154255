"""Tar files between the machine of a campaign and the machine with the device: whole, and checked before use."""

from __future__ import annotations

import hashlib
import hmac
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from atrex.errors import UserError, first_fault
from atrex.files import write_bytes
from atrex.optimize.ask import Ask, sha256

MANIFEST, RESULT = "manifest.json", "result.json"
LARGEST = 256 << 20  # bytes of all files together: kernels and problem folders are text
Form = TypeVar("Form", bound=BaseModel)


class Answer(BaseModel):
    """What a machine with the device says to a bundle. `files` are SHA-256 by name of what was measured.

    `judge_code` is the hash of the judge's own source there, `seeds` maps the commitment of each judgement to its
    secret, `seal` is an HMAC over this document with the question's key: only who has the bundle can make one.
    """

    model_config = ConfigDict(extra="forbid")

    format: Literal[1] = 1
    bundle: str
    campaign: str
    step: str
    number: int
    atrex: str
    judge_code: str
    device: str
    device_name: str
    chip: str
    versions: dict[str, str]
    seeds: dict[str, str] = Field(default_factory=dict)
    started: str
    seconds: float
    files: dict[str, str]
    seal: str = ""

    def sealed(self, key: str) -> Answer:
        return self.model_copy(update={"seal": self._seal(key)})

    def genuine(self, key: str) -> bool:
        return hmac.compare_digest(self.seal, self._seal(key))

    def _seal(self, key: str) -> str:
        text = self.model_copy(update={"seal": ""}).model_dump_json()
        return hmac.digest(bytes.fromhex(key), text.encode(), hashlib.sha256).hex()


def write_bundle(path: Path, asked: Ask, files: Mapping[str, bytes]) -> None:
    """A question with its files. Raises UserError."""
    _write(path, {MANIFEST: asked.text.encode(), **files})


def read_bundle(path: Path) -> tuple[Ask, dict[str, bytes]]:
    """A question and its files, each with the content that was asked about. Raises UserError."""
    files = _read(path)
    asked = document(path, files, MANIFEST, Ask, "a file that atrex optimize bundle wrote")
    _check(path, files, asked.files)
    return asked, files


def write_answer(path: Path, answer: Answer, files: Mapping[str, bytes]) -> None:
    """An answer with what was measured. Raises UserError."""
    _write(path, {RESULT: (answer.model_dump_json(indent=1) + "\n").encode(), **files})


def read_answer(path: Path) -> tuple[Answer, str, dict[str, bytes]]:
    """An answer, its hash, and what was measured; the seal is not looked at. Raises UserError."""
    files = _read(path)
    digest = sha256(files.get(RESULT, b""))
    answer = document(path, files, RESULT, Answer, "a file that atrex optimize serve-bundle wrote")
    _check(path, files, answer.files)
    return answer, digest, files


def document(path: Path, files: dict[str, bytes], name: str, form: type[Form], expected: str) -> Form:
    """A document of a tar file, which is taken out of `files`. Raises UserError."""
    if name not in files:
        raise UserError(f"{path}: no {name} in it; expected {expected}")
    try:
        return form.model_validate_json(files.pop(name))
    except ValidationError as error:
        raise UserError(f"{path}: {name}: {first_fault(error)}; expected {expected}") from None


def unpack(files: Mapping[str, bytes], folder: Path) -> None:
    """Files of a bundle, below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _check(path: Path, files: Mapping[str, bytes], hashes: Mapping[str, str]) -> None:
    if missing := sorted(set(hashes) - set(files)):
        raise UserError(f"{path}: {missing[0]}: missing; the file was altered")
    if extra := sorted(set(files) - set(hashes)):
        raise UserError(f"{path}: {extra[0]}: not listed in it; the file was altered")
    for name, content in files.items():
        if sha256(content) != hashes[name]:
            raise UserError(f"{path}: {name}: not of the hash that is listed in it; the file was altered")


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size, about.mode = len(content), 0o600
            tar.addfile(about, io.BytesIO(content))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, packed.getvalue())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None


def _read(path: Path) -> dict[str, bytes]:
    """Every file of a tar file by name. Anything but plain files with relative names is refused."""
    found: dict[str, bytes] = {}
    left = LARGEST
    try:
        with tarfile.open(path, "r:") as tar:
            for each in tar:
                name = PurePosixPath(each.name)
                if not each.isfile() or name.is_absolute() or ".." in name.parts or each.name in found:
                    raise UserError(f"{path}: {each.name!r}: expected plain files with relative names, each once")
                left -= each.size
                if left < 0:
                    raise UserError(f"{path}: more than {LARGEST >> 20} MiB; expected a bundle or its result")
                found[each.name] = tar.extractfile(each).read()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
    except tarfile.TarError as error:
        raise UserError(f"{path}: no tar file, or cut short ({error})") from None
    return found
