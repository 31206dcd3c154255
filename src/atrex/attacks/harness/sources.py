"""The text of the candidates that an attack judges."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from atrex.attacks.harness.declare import Attack, Form

DSL = {"cpu": "cpp", "cuda": "triton"}


def base_source(name: str, device_type: str) -> str:
    """The honest candidate `name` for a device: `candidates/<name>_<cpp or triton>.py`."""
    return files("atrex.attacks.candidates").joinpath(f"{name}_{DSL[device_type]}.py").read_text()


def candidate_source(form: Form, text: str, device_type: str) -> str:
    """The whole file for one cheat or twin of `form`."""
    text = textwrap.dedent(text).strip() + "\n"
    if form.base is None:
        return text
    return f"{base_source(form.base, device_type)}\n\nHonest = Model\n\n\n{text}"


def write_sources(chosen: Mapping[str, Attack], device_type: str, folder: Path) -> int:
    """Write every candidate to `folder/<attack>/<cheat or twin>/<operator>.py`; how many there were."""
    count = 0
    for name, attack in chosen.items():
        for number, form in enumerate(f for f in attack.forms if device_type in f.devices):
            suffix = f"-{number}" if number else ""
            for label, text in {**form.cheats, "twin": form.twin}.items():
                place = folder / name / f"{label.replace(' ', '_') or 'cheat'}{suffix}"
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{form.operator}.py").write_text(candidate_source(form, text, device_type))
                count += 1
    return count
