"""`atrex optimize`: campaigns that make one kernel faster, by an agent or step by step by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.errors import UserError
from atrex.files import read_source

app = typer.Typer(no_args_is_help=True)
CampaignArgument = Annotated[Path, typer.Argument(metavar="CAMPAIGN", help="The campaign's folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Option("--dir", help="The campaign's folder, new or empty.")],
    dsl: Annotated[str, typer.Option(help="The DSL to write in.")],
    problem: Annotated[str | None, typer.Option(help="Operator; of a bare kernel its name.")] = None,
    kernel: Annotated[Path | None, typer.Option(help="A bare kernel, no suite's: it is handed in first.")] = None,
    reference: Annotated[Path | None, typer.Option(help="For --kernel: Model and its inputs, in PyTorch.")] = None,
    work: Annotated[Path | None, typer.Option(help="For --kernel: work.py with W and Q; else counted.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda:N; default: cuda:0 where there is one.")] = None,
    shapes: Annotated[str | None, typer.Option(help='Shape ids, such as "0,3-5"; default: all that fit.')] = None,
    suite: Annotated[Path | None, typer.Option(help="Another suite.")] = None,
    agent: Annotated[str | None, typer.Option(help="As of atrex agents; none: by hand.")] = None,
    model: Annotated[str | None, typer.Option(help="The model that the agent is to use.")] = None,
    error: Annotated[float, typer.Option(help="Chance of any false promotion in the whole campaign.")] = 0.05,
    dropout: Annotated[str, typer.Option(help="What a restart hides: none, uniform, age, failure, category.")] = (
        "uniform"
    ),
    seed: Annotated[int, typer.Option(help="Of the dropout.")] = 0,
    restarts: Annotated[int, typer.Option(min=0, help="Partial restarts before it ends.")] = 2,
    iterations: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="End when so many dollars are spent.")] = None,
    until_s: Annotated[float | None, typer.Option(help="End when S_i is reached.")] = None,
    chip: Annotated[
        str | None, typer.Option(help="Of a device on another machine, such as H200; measurements travel in bundles.")
    ] = None,
    keep_duplicates: Annotated[bool, typer.Option(help="Measure candidates that compile to the same again.")] = False,
) -> None:
    """Begin a campaign: settings and the roofline, before any code."""
    from atrex.hardware.detect import default_device
    from atrex.optimize.setup import Wish, begin

    bare = _bare(problem, suite, kernel, reference, work)
    wish = Wish(
        problem or "", dsl, device or ("cuda:0" if chip else default_device()), shapes, suite, agent, model, error,
        dropout, seed, restarts, iterations, budget_usd, until_s, not keep_duplicates, chip,
    )  # fmt: skip
    if bare is None:
        campaign = begin(folder, wish)
    else:
        from atrex.optimize.bare import begin_bare

        campaign = begin_bare(folder, wish, bare, print)
    found = campaign.roofline
    operator = campaign.settings.operator
    print(f"{operator} in {dsl} on {found.chip}, {len(found.shapes)} shapes; ceilings from {_cards(found.cards)}")
    if found.estimated:
        print("W and Q are estimated, counted from the reference; --work says what the operator needs")
    for shape, bound in found.shapes.items():
        print(f"  {shape:>4}  {bound.bound:7} {bound.roofline_us:10.2f} us")
    print(f"next: atrex optimize {'run' if agent else 'next'} {folder}")


def _bare(problem: str | None, suite: Path | None, kernel: Path | None, reference: Path | None, work: Path | None):
    """What --kernel and its options give, None for an operator of a suite. Raises UserError for what does not fit."""
    if kernel is None:
        if problem is None:
            raise UserError("init: expected --problem OP, or --kernel FILE and --reference FILE")
        for name, given in (("--reference", reference), ("--work", work)):
            if given is not None:
                raise UserError(f"{name} {given}: belongs to a bare kernel; expected --kernel FILE beside it")
        return None
    if reference is None:
        raise UserError(f"--kernel {kernel}: expected --reference FILE, the Model that says what it computes")
    if suite is not None:
        raise UserError(f"--kernel {kernel}: is in no suite; leave out --suite")
    from atrex.optimize.bare import Bare

    return Bare(kernel, reference, work)


@app.command()
def run(
    campaign: CampaignArgument,
    iterations: Annotated[int | None, typer.Option(min=1, help="Stop here after so many more; go on later.")] = None,
    timeout: Annotated[float, typer.Option(help="Minutes for one session of the agent.")] = 30.0,
) -> None:
    """Let the campaign's agent work until it ends. Ctrl-C loses nothing; the same command goes on."""
    from atrex.agents.base import Choice, make
    from atrex.optimize.director import Director

    with _supervisor(campaign) as supervisor:
        settings = supervisor.campaign.settings
        if settings.agent is None:
            raise UserError(f"{campaign}: no agent was named at init; use next, plan and submit")
        agent = make(Choice.parse(settings.agent, settings.model))
        director = Director(supervisor, agent, 60 * timeout, print)
        most = None if iterations is None else max(len(supervisor.campaign.memory), 1) + iterations
        director.run(most)
        _status(supervisor.campaign)


@app.command(name="next")
def next_step(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Do what is the supervisor's, then lay out in CAMPAIGN/view what the next plan or kernel is to be made from."""
    from atrex.optimize.view import lay_out, task

    with _supervisor(campaign) as supervisor:
        at = supervisor.advance()
        if at.step == "stop":
            stop = supervisor.go_on()
            at = supervisor.advance()
            if not as_json:
                print(f"{stop.what}: {stop.reason}")
        folder = campaign / "view"
        if at.step != "done":
            lay_out(supervisor.campaign, at, folder)
        if as_json:
            print(json.dumps({"step": at.step, "iteration": at.number, "view": str(folder)}))
        elif at.step == "done":
            _status(supervisor.campaign)
        else:
            print(f"{at.step} of iteration {at.number}; see {folder}\n")
            print(task(supervisor.campaign, at))


@app.command()
def plan(
    campaign: CampaignArgument,
    file: Annotated[Path | None, typer.Argument(help="The plan, as JSON.")] = None,
    none: Annotated[str | None, typer.Option("--none", help="No direction is left, and why.")] = None,
) -> None:
    """Hand in the plan of an iteration, or say that there is none."""
    from atrex.optimize.model import Plan
    from atrex.optimize.store import parse

    if (file is None) == (none is None):
        raise UserError("plan: expected a file or --none WHY")
    with _supervisor(campaign, waiting=2) as supervisor:
        supervisor.advance()
        if none is not None:
            print(supervisor.no_direction(none).what)
        else:
            supervisor.plan(parse(file, Plan))
            print("planned; hand in the kernel with: atrex optimize submit")


@app.command()
def submit(
    campaign: CampaignArgument, file: Annotated[Path, typer.Argument(help="The kernel.")], as_json: JsonOption = False
) -> None:
    """Hand in a kernel: the baseline, or the candidate of the planned iteration. It is judged and contested."""
    source = read_source(file)
    with _supervisor(campaign, quiet=as_json) as supervisor:
        record = supervisor.submit(source)
        if as_json:
            print(record.model_dump_json() if record else "null")
        if record is None:
            raise typer.Exit(1)


@app.command()
def stop(campaign: CampaignArgument, reason: Annotated[str, typer.Option(help="Why.")] = "stopped by hand") -> None:
    """End a campaign."""
    with _supervisor(campaign) as supervisor:
        supervisor.stop(reason)
        _status(supervisor.campaign)


@app.command()
def status(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Where a campaign stands."""
    from atrex.optimize.store import Campaign

    _status(Campaign(campaign), as_json)


@app.command()
def log(campaign: CampaignArgument) -> None:
    """A campaign as a story: what was seen, planned, predicted, measured, and decided."""
    from atrex.optimize.log import story
    from atrex.optimize.store import Campaign

    for text in story(Campaign(campaign)):
        print(text)


@app.command()
def pack(
    campaign: CampaignArgument, out: Annotated[Path, typer.Option(help="Where the kernel goes.")] = Path("kernel.py")
) -> None:
    """Hand over the accepted kernel: one self-contained file, judged again in a clean process with new seeds."""
    from atrex.optimize.pack import pack as packed

    with _supervisor(campaign, waiting=2) as supervisor:
        found = packed(supervisor.campaign, supervisor.lab, out)
        print(f"{found.path}: {len(found.records)} shapes pass, sha256 {found.sha256}")


class _supervisor:
    """The campaign's supervisor, holding it against others. A context manager.

    `waiting` is the exit status when the device on another machine has to measure first: 0 where what was handed in is
    kept meanwhile.
    """

    def __init__(self, path: Path, quiet: bool = False, waiting: int = 0):
        from atrex.optimize.machine import Supervisor
        from atrex.optimize.served import lab_of
        from atrex.optimize.store import Campaign

        campaign = Campaign(path)
        self._held, self._waiting = campaign.held(), waiting
        self._supervisor = Supervisor(campaign, lab_of(campaign), (lambda line: None) if quiet else print)

    def __enter__(self):
        self._held.__enter__()
        return self._supervisor

    def __exit__(self, kind, error, trace):
        from atrex.optimize.lab import Pending

        self._held.__exit__(kind, error, trace)
        if isinstance(error, Pending):
            print(error, file=sys.stderr)
            raise typer.Exit(self._waiting)


def _status(campaign, as_json: bool = False) -> None:
    from atrex.optimize.director import spent_of
    from atrex.optimize.machine import position

    at, memory, best = position(campaign), campaign.memory, campaign.incumbent
    accepted = [record.number for record in memory if record.accepted]
    spent = spent_of(campaign.path)
    about = {
        "operator": campaign.settings.operator, "dsl": campaign.settings.dsl, "chip": campaign.settings.chip,
        "step": at.step, "iteration": at.number, "iterations": max(len(memory) - 1, 0), "accepted": accepted,
        "S": best.validation.S_i if best else None, "S_baseline": memory[0].validation.S_i if memory else None,
        "session": campaign.session, "hidden": len(memory) - len(campaign.visible), "tokens": spent.tokens,
        "usd": spent.usd,
    }  # fmt: skip
    if as_json:
        print(json.dumps(about))
        return
    print(f"{about['operator']} in {about['dsl']} on {about['chip']}: {at.step} of iteration {at.number}")
    if best:
        first, now = (f"{v:.3f}" if v is not None else "-" for v in (about["S_baseline"], about["S"]))
        promoted = len(accepted) - 1
        print(f"S {first} -> {now}; {about['iterations']} iterations, {promoted} promoted, session {campaign.session}")


def _cards(cards: dict[str, str]) -> str:
    return ", ".join(sorted(set(cards.values())))
