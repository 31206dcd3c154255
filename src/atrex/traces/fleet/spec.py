"""`fleet.yaml`: which applications run, for how many card-hours, and which traces show what they do.

    applications:
      chat:
        card_hours: 1200
        traces: [traces/chat-*.json.gz, {files: traces/chat-7-DECODE.json.gz, phase: decode, rank: 7}]
        model_config: models/chat/config.json
        tensor_parallel: 2
        block_size: 16
        typical: {decode: {requests: 32, context: 2048}}

Paths are relative to the file. docs/fleet.md describes every field.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, field_validator

from atrex.errors import UserError
from atrex.traces.families.versions import parse_framework

Phase = Literal["prefill", "decode", "mixed"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Typical(_Strict):
    """What a step of a phase usually is, for dimensions that no trace tells.

    `requests`: in a step. `tokens`: query tokens of a step. `context`: tokens that a request's cache holds before it.
    """

    requests: PositiveInt | None = None
    tokens: PositiveInt | None = None
    context: int | None = Field(None, ge=0)


class Hints(_Strict):
    """What a trace does not say itself. `framework`: NAME==VERSION. `chip`: id of a chip file, such as H200."""

    phase: Phase | None = None
    rank: int | None = Field(None, ge=0)
    framework: str | None = None
    chip: str | None = None

    @field_validator("framework")
    @classmethod
    def _versioned(cls, value: str | None) -> str | None:
        if value is not None:
            parse_framework(value)
        return value

    @field_validator("chip")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        from atrex.hardware.chip import chip_ids

        if value is not None and value not in chip_ids():
            raise ValueError(f"unknown chip {value!r}: expected one of {', '.join(chip_ids())}")
        return value


class Files(Hints):
    """Trace files, as paths or glob patterns, with hints of their own."""

    files: str | list[str]

    @property
    def patterns(self) -> list[str]:
        return [self.files] if isinstance(self.files, str) else list(self.files)


class Application(Hints):
    """One deployed application. Its hints hold for traces that have none of their own.

    `hugging_face_config`, written `model_config`: path of the model's config.json. `tensor_parallel`: cards that share
    a layer's heads and columns. `expert_parallel`: cards that share the experts. `block_size`: tokens of a page of the
    cache. `quantization`: how weights and activations are quantized.
    """

    card_hours: PositiveFloat
    traces: list[str | Files] = Field(min_length=1)
    hugging_face_config: Path | None = Field(None, alias="model_config")
    tensor_parallel: PositiveInt = 1
    expert_parallel: PositiveInt = 1
    block_size: PositiveInt | None = None
    quantization: Literal["none", "fp8", "fp8_block"] | None = None
    typical: dict[Literal["prefill", "decode"], Typical] = Field(default_factory=dict)

    def entries(self) -> list[Files]:
        """The traces, each with the hints that hold for it."""
        found = []
        for each in self.traces:
            entry = each if isinstance(each, Files) else Files(files=each)
            missing = {n: getattr(self, n) for n in Hints.model_fields if getattr(entry, n) is None}
            found.append(entry.model_copy(update=missing))
        return found


class Explained(_Strict):
    """Why the traced time of a shape may lie under its roofline.

    `kwargs`: those that tell the shapes meant from others, by name; all of an operator's without any.
    """

    operator: str
    kwargs: dict[str, Any] = Field(default_factory=dict)
    why: str = Field(min_length=1)


class _Document(_Strict):
    name: str | None = None
    version: str | None = None
    applications: dict[str, Application] = Field(min_length=1)
    explained: list[Explained] = Field(default_factory=list)


class Fleet(_Document):
    """The whole file, with the path that it was read from."""

    path: Path

    def card_hours(self) -> dict[str, float]:
        return {name: app.card_hours for name, app in self.applications.items()}

    def files_of(self, name: str) -> list[tuple[Path, Files]]:
        """The trace files of an application that exist, each with its hints. Raises UserError where a pattern has none.

        A file that several patterns name is taken once, with the hints of the first.
        """
        found: dict[Path, Files] = {}
        for i, entry in enumerate(self.applications[name].entries()):
            for pattern in entry.patterns:
                matches = sorted(p for p in _glob(self.path.parent, pattern) if p.is_file())
                if not matches:
                    raise UserError(f"{self.path}: applications.{name}.traces.{i}: no file matches {pattern!r}")
                for path in matches:
                    found.setdefault(path, entry)
        return list(found.items())

    def config_of(self, name: str) -> Path | None:
        """The model's config.json of an application, resolved."""
        given = self.applications[name].hugging_face_config
        return None if given is None else self.path.parent / given


def load_fleet(path: Path) -> Fleet:
    """Read a fleet.yaml. Raises UserError, naming file and field, for whatever is wrong with it."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}), expected a fleet.yaml") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path}: expected a mapping with the key applications")
    try:
        document = _Document.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"{path}: {_where(first['loc'])}: {first['msg'].removeprefix('Value error, ')}") from None
    return Fleet(path=path.resolve(), **dict(document))


def _where(location: tuple[Any, ...]) -> str:
    """A field's path without the names that pydantic gives the arms of a union."""
    return ".".join(str(part) for part in location if part not in ("str", "Files")) or "fleet"


def _glob(folder: Path, pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_absolute():
        return list(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    return list(folder.glob(pattern)) if not pattern.startswith("..") else _above(folder, path)


def _above(folder: Path, path: Path) -> list[Path]:
    """Patterns that begin with `..`, which Path.glob does not resolve."""
    parts = list(path.parts)
    while parts and parts[0] == "..":
        folder, parts = folder.parent, parts[1:]
    return list(folder.glob(str(Path(*parts)))) if parts else []
