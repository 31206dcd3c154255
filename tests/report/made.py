"""What the pages are tested with: a campaign of every outcome, and a data set of one small trace."""

from __future__ import annotations

import json
from pathlib import Path

from tests.optimize.lab import BASE_US, SayingLab, kernel
from tests.traces import fleets, scene

from atrex.agents.events import Ended, Message, ToolCall, ToolResult, Usage
from atrex.generate.transcript import Redactor, Transcript
from atrex.optimize.machine import Supervisor
from atrex.optimize.model import Plan, Roofline, Settings, ShapeRoofline
from atrex.optimize.store import Campaign
from atrex.traces import importer
from atrex.traces.pipeline import Options

HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror="document.title=\'owned\'">{{ 7*7 }}'
CARD = "coalesced-access"


def new_campaign(path: Path, **settings) -> tuple[Supervisor, Campaign]:
    """A campaign without a kernel, whose lab believes what a kernel says of itself."""
    fields = {
        "operator": "rms_norm", "shapes": list(BASE_US), "dsl": "cpp", "device": "cpu", "chip": "cpu", "suite": None,
        "suite_hash": "x", "agent": "tuner", "policy": "uniform", "created": "2026-11-30T08:00:00+00:00",
    }  # fmt: skip
    bound = ShapeRoofline(flops=2e6, bytes_moved=4e6, intensity=0.5, bound="memory", roofline_us=1.0)
    roofline = Roofline(
        chip="cpu", ceilings={"memory.bandwidth": 6e10}, cards={"memory.bandwidth": "calibration of this CPU"},
        shapes=dict.fromkeys(BASE_US, bound),
    )  # fmt: skip
    campaign = Campaign.create(path, Settings(**fields | settings), roofline)
    return Supervisor(campaign, SayingLab()), campaign


def iterate(supervisor: Supervisor, source: str, category: str = "vectorization", gain: float = 1.2, **plan) -> None:
    """One iteration: what is planned, and a kernel."""
    fields = {"bottleneck": "memory bandwidth", "change": "wider loads of both operands", "cards": [CARD]} | plan
    supervisor.advance()
    supervisor.plan(Plan(category=category, gain=gain, **fields))
    supervisor.submit(source)


def full_campaign(path: Path, say: str = "plainly", **settings) -> Campaign:
    """Baseline, promoted, slower on one shape, wrong, a restart, a duplicate, promoted again.

    `say` stands in every text that an agent writes.
    """
    supervisor, campaign = new_campaign(path, **settings)
    supervisor.advance()
    supervisor.submit(kernel(1.0, note=say))
    iterate(
        supervisor,
        kernel(1.3, note=say, artifact="one"),
        change=f"wider loads: {say}",
        risks=say,
        bottleneck=f"memory {say}",
    )
    supervisor.go_on()
    iterate(supervisor, kernel(1.6, slow1=1.4), "tiling", 1.5)
    supervisor.go_on()
    iterate(supervisor, kernel(2.0, wrong=1), "layout", 1.1)
    supervisor.no_direction(f"nothing left to try: {say}")
    iterate(supervisor, kernel(1.3, note=say, artifact="one") + "# the same in other words\n", "prefetch", 1.05)
    supervisor.go_on()
    iterate(supervisor, kernel(1.6), "tiling", 1.25, figures={"60 GB/s": CARD})
    spent = (("0000-baseline-0", 900, 0.02), ("0001-plan-0", 4000, 0.11), ("0001-candidate-0", 9000, 0.3))
    for name, tokens, usd in spent:
        with Transcript(path / "transcripts" / f"{name}.jsonl", Redactor([])) as transcript:
            transcript.add(Message(role="supervisor", text=f"the task: {say}"))
            transcript.add(ToolCall(id="1", tool="shell", arguments={"command": f"cat kernel.py # {say}"}))
            transcript.add(ToolResult(id="1", text=say, failed=False))
            transcript.add(Message(role="agent", text=say))
            transcript.add(Usage(input=tokens - 100, output=100, cost_usd=usd))
            transcript.add(Ended(how="done"))
        with (path / "spend.jsonl").open("a") as file:
            file.write(json.dumps({"session": name, "tokens": tokens, "usd": usd}) + "\n")
    return campaign


def trace_set(path: Path, say: str = "plainly") -> Path:
    """A data set of two applications, with a kernel that no rule covers. `say` stands in every text of a trace."""
    chat, search = scene.serving(), fleets.searching()
    chat.call([f"made_up::{say}"], f"no_rule_covers_this_kernel {say}", 9_000, module=f"Module {say}", frame=say)
    for name, built, app in (("chat.json", chat, f"chat {say}"), ("search.json", search, "search")):
        source = path.with_name(f"{path.name}-{name}")
        source.write_bytes(scene.render(built.events))
        importer.import_files([source], path, Options(app=app), jobs=1)
    return path
