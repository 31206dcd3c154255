"""The demo: what Atrex is for, end to end, on the CPU of any machine.

It runs the commands that a user would type, each shown before it runs, in a folder of its own that then holds the
candidates and everything that came of them.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrex.errors import UserError

EXAMPLES = Path(__file__).parent / "examples"
"""The example candidates and traces. They ship with the package; in a checkout this is a link to `examples/`."""

FLEET = ("chat.json.gz", "search.json.gz", "config.json", "fleet.yaml")
CANDIDATES = ("cpp/rms_norm.py", "cpp/silu_and_mul.py", "torch/rms_norm.py", "wrong/rms_norm.py")
UNSOUND = 1
"""Exit status of a command that finished, with figures that are not sound (a unit measured beside other work)."""


@dataclass(frozen=True)
class Step:
    """One command of the demo: what it does in the user's words, and the arguments of `atrex`."""

    title: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command as a user would type it."""
        return shlex.join(("atrex", *self.arguments))


JUDGE = (
    Step("calibrating this CPU: its ceilings are measured", ("hardware", "calibrate", "--device", "cpu")),
    Step(
        "judging four example kernels, one of them wrong on purpose",
        ("eval", *CANDIDATES, "--device", "cpu", "--shapes", "0,1", "--seeds", "3", "--out", "run"),
    ),
    Step("the score", ("score", "run")),
)
TRACES = (
    Step(
        "reading the traces of a small fleet, made up for this",
        ("trace", "import", "fleet/chat.json.gz", "fleet/search.json.gz", "--out", "data"),
    ),
    Step("which operators take its device time", ("trace", "top", "data")),
    Step("what each operator weighs in it", ("suite", "weights", "--fleet", "fleet/fleet.yaml")),
)

CAMPAIGN = (
    Step(
        "a campaign that makes a kernel faster, without a model: the roofline first",
        ("optimize", "init", "--problem", "silu_and_mul", "--dsl", "cpp", "--device", "cpu", "--shapes", "18",
         "--agent", "tuner:4", "--seed", "9", "--dir", "campaign"),
    ),
    Step(
        "one iteration of it, in two minutes at most: evidence, plan, kernel, contest; S before and after",
        ("optimize", "run", "campaign", "--iterations", "1", "--budget-s", "90"),
    ),
    Step("what it did, as a story", ("optimize", "log", "campaign")),
)  # fmt: skip
"""The seed decides which knob is tried first; with this one it is the width of vectors."""


def demo_steps() -> tuple[Step, ...]:
    """What the demo does, in order, all with the demo's folder as the working directory.

    Left out are traces where atrex[traces] is not installed, the campaign where git is not, and the report of what was
    done where atrex[report] is not.
    """
    traces = TRACES if importlib.util.find_spec("polars") else ()
    campaign = CAMPAIGN if shutil.which("git") else ()
    done = ("run", *(("campaign",) if campaign else ()), *(("data",) if traces else ()))
    report = Step(
        "all of it as pages: open site/index.html in the demo's folder", ("report", *done, "--out", "site", "--quiet")
    )
    return (*traces, *JUDGE, *campaign, *((report,) if importlib.util.find_spec("plotly") else ()))


def run_demo(folder: Path, say: Callable[[str], None], steps: Sequence[Step]) -> int:
    """Run the demo in `folder`, which must not exist yet, and return the exit status for the whole.

    0 when every step went well, 1 when a step finished with figures that are not sound; a step that ends in any other
    way ends the demo with its status. Raises UserError if the machine lacks what the demo needs or `folder` exists.
    """
    if shutil.which("g++") is None:
        raise UserError("the demo builds C++ candidates and needs g++ (Debian, Ubuntu: apt install g++)")
    if folder.exists():
        raise UserError(f"{folder}: is there already, expected a new folder for the demo")
    try:
        copies = {path: f"candidates/{path}" for path in CANDIDATES} | {
            f"fleet/{name}": f"fleet/{name}" for name in FLEET
        }
        for name, source in copies.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(EXAMPLES / source, target)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    worst = 0
    for step in steps:
        say(f"==> {step.title}\n    {step.command}")
        status = _run(step, folder)
        if status not in (0, UNSOUND):
            return status
        worst = max(worst, status)
    return worst


def _run(step: Step, folder: Path) -> int:
    command = [sys.executable, "-m", "atrex.cli.main", *step.arguments]
    # Ctrl-C reaches the child as well, which then closes its run by itself: it is waited for, not killed.
    with subprocess.Popen(command, cwd=folder) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue
