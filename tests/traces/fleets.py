"""A small fleet made from the tests' scenes: two applications, their traces, a fleet.yaml."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.traces import scene

CHAT, SEARCH = "chat", "search"


def write(folder: Path, **changes) -> Path:
    """A fleet.yaml with its traces in `folder`; `changes` replace keys of applications (application=mapping)."""
    files = {"chat.json": scene.serving(), "search.json": searching()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, built in files.items():
        (folder / name).write_bytes(scene.render(built.events))
    applications = {
        CHAT: {"card_hours": 300, "traces": ["chat.json"]},
        SEARCH: {"card_hours": 100, "traces": ["search.json"]},
    }
    for name, values in changes.items():
        applications[name] = {**applications.get(name, {}), **values}
    return document(folder / "fleet.yaml", {"applications": applications})


def document(path: Path, content: dict) -> Path:
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def searching() -> scene.Scene:
    """An application that only reads prompts, larger ones."""
    built = scene.Scene()
    for _ in range(3):
        step(built, "execute_context_4(4096)_generation_0(0)", 4096, factor=20)
    return built


def step(built: scene.Scene, name: str, tokens: int, factor: int = 1, dims: bool = True) -> None:
    """A step of the scene's layer whose kernels take `factor` times as long."""
    start = built.host
    built.host += 5_000
    for slot, (module, ops, kernel, ns) in enumerate(scene.LAYER):
        operands = [[tokens, 4096], [4096]] if dims else None
        built.call(ops, kernel, ns * factor, f"{module}_{slot}", operands)
    built.add("user_annotation", name, start, built.host - start)
    built.host += 9_000


def scaled(built: scene.Scene, factor: int) -> scene.Scene:
    """The same events on a clock that runs `factor` times as fast."""
    for event in built.events:
        event["ts"], event["dur"] = event["ts"] * factor, event["dur"] * factor
    return built


def example() -> dict[str, scene.Scene]:
    """The traces of examples/fleet by file name."""
    chat = scene.Scene()
    step(chat, "execute_context_2(700)_generation_0(0)", 700, factor=2)
    for _ in range(3):
        step(chat, "execute_context_0(0)_generation_16(16)", 16)
    step(chat, "execute_context_1(240)_generation_16(16)", 256)
    return {"chat.json.gz": chat, "search.json.gz": searching()}


def write_example(folder: Path) -> None:
    """Write the traces of examples/fleet: `python -c "from tests.traces import fleets; ..."` after a change here."""
    for name, built in example().items():
        (folder / name).write_bytes(scene.compressed(scene.render(built.events, "compact")))
