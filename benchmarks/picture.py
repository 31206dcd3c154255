"""The picture in the README: the units of a run, as `atrex score RUN --units` prints them, as an SVG.

    atrex demo --out demo
    python benchmarks/picture.py demo/run --out docs/images/demo.svg

Nothing in it is loaded from elsewhere: the web font that rich names is left out, the reader's monospaced one stands in.
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from atrex.report.tables import print_units
from atrex.scoring.candidates import score_run
from atrex.scoring.published import PUBLISHED_SHAPES
from atrex.scoring.runs import load_run
from atrex.scoring.suites import terms

WIDTH = 150


def picture(path: Path, command: str) -> str:
    """The SVG of the units of the run in `path`, under the `command` that prints them."""
    run = load_run(path)
    weights, shapes = terms([run])
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text(f"$ {command}", style="bold"))
    for label, scored in score_run(run.run, run.records, weights.values, {**PUBLISHED_SHAPES, **shapes}).items():
        print_units(label, scored.records, list(scored.operators), console)
    svg = console.export_svg(title="atrex", theme=MONOKAI)
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
    return "\n".join(line.rstrip() for line in svg.replace("Fira Code, monospace", "monospace").splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--out", type=Path, required=True, help="where the SVG goes")
    parser.add_argument("--command", default="atrex score run --units", help="the command to show above it")
    asked = parser.parse_args()
    asked.out.write_text(picture(asked.run, asked.command))
    print(asked.out)


if __name__ == "__main__":
    main()
