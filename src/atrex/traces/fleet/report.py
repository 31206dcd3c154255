"""What `atrex suite weights --fleet` says: operators by weight, families beyond the suite, applications."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from atrex.traces.fleet.weights import FamilyWeight, FleetWeights

BEYOND_SHOWN = 12


def weights_document(found: FleetWeights) -> dict[str, Any]:
    """Everything that led to the weights, as one JSON object."""
    return {
        "time": found.time,
        "mixed": found.mixed,
        "min_share": found.min_share,
        "applications": {
            name: {"card_hours": app.card_hours, "share": app.share, "device_ns": app.ns}
            for name, app in found.applications.items()
        },
        "weights": found.weights,
        "families": [
            {"family": f.family, "operator": f.operator, "phases": list(f.phases), "score": f.score,
             "weight": f.weight, "shares": f.shares}
            for f in found.families if f.score > 0
        ],
        "notes": found.notes,
    }  # fmt: skip


def print_weights(found: FleetWeights, console: Console, names: Mapping[str, str] | None = None) -> None:
    """Tables of `found`. `names`: what applications are called in them, where not by their own names."""
    names = names or {}
    apps = list(found.applications)
    columns = [(app, phase) for app in apps for phase in found.applications[app].phases]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operator", overflow="fold")
    for title in ("weight", "score"):
        table.add_column(title, justify="right")
    table.add_column("runs in")
    for app, phase in columns if len(columns) <= 6 else []:
        table.add_column(Text(f"{names.get(app, app)} {phase}"), justify="right", overflow="fold")
    retained = [f for f in found.families if f.weight is not None]
    for f in retained:
        table.add_row(f.operator, f"{f.weight:.2%}", f"{f.score:.4f}", "/".join(f.phases), *_shares(f, columns))
    console.print(table)
    console.print(
        f"score: mean share of {found.time} device time over the phases that an operator runs in (from "
        f"{found.min_share:.2%} of a phase on), by card-hours; a weight is a score over the sum of the {len(retained)} "
        f"operators' scores, {sum(f.score for f in retained):.4f}",
        markup=False, soft_wrap=True,
    )  # fmt: skip
    beyond = [f for f in found.families if f.weight is None and f.score > 0]
    if beyond:
        shown = ", ".join(f"{f.family} {f.score:.1%}" for f in beyond[:BEYOND_SHOWN])
        more = f" and {len(beyond) - BEYOND_SHOWN} more" if len(beyond) > BEYOND_SHOWN else ""
        console.print(f"not weighted: {shown}{more}", markup=False, soft_wrap=True)
    for app in apps:
        about = found.applications[app]
        whole = sum(about.ns.values())
        phases = ", ".join(f"{p} {ns / whole:.1%}" for p, ns in about.ns.items())
        console.print(
            f"{names.get(app, app)}: {about.share:.1%} of the card-hours, {whole / 1e6:.3f} ms traced ({phases})",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    how = "split by their tokens" if found.mixed == "split" else "kept apart"
    console.print(f"mixed steps are {how}", markup=False)
    for note in found.notes:
        for app, name in names.items():
            note = note.replace(f"{app}: ", f"{name}: ", 1) if note.startswith(f"{app}: ") else note
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def _shares(f: FamilyWeight, columns: list[tuple[str, str]]) -> list[str]:
    return [f"{f.shares[app][phase]:.2%}" for app, phase in columns] if len(columns) <= 6 else []


def write_weights(found: FleetWeights, path: Path) -> None:
    """The weights as `atrex score --weights` takes them: one JSON object {operator: weight}."""
    import json

    from atrex.errors import UserError

    try:
        path.write_text(json.dumps(found.weights, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from None
