"""`atrex optimize`: campaigns that make one kernel faster, by an agent or step by step by hand."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from atrex.errors import UserError
from atrex.files import read_source

app = typer.Typer(no_args_is_help=True)
CampaignArgument = Annotated[Path, typer.Argument(metavar="CAMPAIGN", help="The campaign's folder.")]
_GRACE_S = 30.0
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Option("--dir", help="The campaign's folder, new or empty.")],
    dsl: Annotated[str, typer.Option(help="The DSL to write in; by hand also several, such as triton,cuda.")],
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
        "none"
    ),
    seed: Annotated[int, typer.Option(help="Of the dropout.")] = 0,
    restarts: Annotated[int, typer.Option(min=0, help="Partial restarts before it ends.")] = 2,
    width: Annotated[int, typer.Option(min=1, max=16, help="Attempts an iteration makes from one incumbent.")] = 1,
    iterations: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    budget_usd: Annotated[float | None, typer.Option(help="End when so many dollars are spent.")] = None,
    until_s: Annotated[float | None, typer.Option(help="End when S_i is reached.")] = None,
    chip: Annotated[
        str | None, typer.Option(help="Of a device on another machine, such as H200; measurements travel in bundles.")
    ] = None,
    contest_rounds: Annotated[int, typer.Option(min=3, help="A contest that needs more is undecided.")] = 56,
    contest_s: Annotated[float, typer.Option(min=1, help="A contest that needs more seconds is undecided.")] = 1200.0,
    keep_duplicates: Annotated[bool, typer.Option(help="Measure candidates that compile to the same again.")] = False,
) -> None:
    """Begin a campaign: settings and the roofline, before any code."""
    from atrex.hardware.detect import default_device
    from atrex.optimize.setup import Wish, begin

    bare = _bare(problem, suite, kernel, reference, work)
    wish = Wish(
        problem or "", dsl, device or ("cuda:0" if chip else default_device()), shapes, suite, agent, model, error,
        dropout, seed, restarts, iterations, budget_usd, until_s, not keep_duplicates, chip,
        width, contest_rounds, contest_s,
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
    width: Annotated[int | None, typer.Option(min=1, max=16, help="Attempts an iteration, from now on.")] = None,
    budget_s: Annotated[float | None, typer.Option(min=1, help="Stop here after so many seconds; go on later.")] = None,
) -> None:
    """Let the campaign's agent work until it ends. Ctrl-C loses nothing; the same command goes on.

    With --budget-s nothing new is begun when the time is over: a session of the agent is ended, a contest is undecided,
    and what the judge has begun it may finish within half a minute.
    """
    began = time.monotonic()
    from atrex.agents.base import Choice, make
    from atrex.optimize.director import Director
    from atrex.optimize.verbs import supervised

    with _waits(), supervised(campaign, print) as supervisor:
        settings = supervisor.campaign.settings
        if settings.agent is None:
            raise UserError(f"{campaign}: no agent was named at init; use next, plan and submit")
        if width is not None:
            supervisor.widen(width)
        agent = make(Choice.parse(settings.agent, settings.model))
        director = Director(supervisor, agent, 60 * timeout, print)
        most = None if iterations is None else supervisor.campaign.tried + 1 + iterations
        if budget_s is None:
            director.run(most)
        else:
            with _ended_after(began + budget_s + _GRACE_S - time.monotonic()):
                director.run(most, began + budget_s)
    _status(campaign)


@app.command(name="next")
def next_step(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Do what is the supervisor's, then lay out in CAMPAIGN/view what the next plan or kernel is to be made from."""
    from atrex.optimize import verbs

    with _waits():
        found = verbs.next_step(campaign, verbs.quiet if as_json else print)
    at = found.at
    if as_json:
        where = {"step": at.step, "iteration": at.number, "view": str(campaign / verbs.VIEW), "most": found.most}
        print(json.dumps(where))
        return
    if found.stop is not None:
        print(f"{found.stop.what}: {found.stop.reason}")
    if found.task is None:
        _status(campaign)
        return
    print(f"{at.step} of iteration {at.number}; see {found.view}")
    if found.most > 1:
        print(f"up to {found.most} plans" if at.step == "plan" else f"{found.most} kernels, one for each plan")
    print(f"\n{found.task}")


@app.command()
def plan(
    campaign: CampaignArgument,
    files: Annotated[list[Path] | None, typer.Argument(help="Plans as JSON, as many as --width at most.")] = None,
    none: Annotated[str | None, typer.Option("--none", help="No direction is left, and why.")] = None,
) -> None:
    """Hand in the plans of an iteration, one for each attempt, or say that there is none."""
    from atrex.optimize import verbs
    from atrex.optimize.model import Plan
    from atrex.optimize.store import parse

    if bool(files) == (none is not None):
        raise UserError("plan: expected a file or --none WHY")
    with _waits(2):
        ended = verbs.plan(campaign, [parse(file, Plan) for file in files or []], none, print)
    print(ended.what if ended else f"{_count(files, 'plan')}; hand in the kernels with: atrex optimize submit")


@app.command()
def submit(
    campaign: CampaignArgument,
    files: Annotated[list[Path], typer.Argument(help="The kernel; with several plans one for each, in their order.")],
    as_json: JsonOption = False,
) -> None:
    """Hand in kernels: the baseline, or the candidates of the planned iteration. They are judged and contested."""
    from atrex.optimize import verbs

    sources = [read_source(file) for file in files]
    with _waits():
        records, at = verbs.submit(campaign, sources, verbs.quiet if as_json else print)
    if as_json:
        each = [record.model_dump_json() for record in records]
        print(f"[{', '.join(each)}]" if len(files) > 1 else (each or ["null"])[-1])
    elif at.step == "candidate":
        print(f"{_count(files, 'kernel')} kept; that of attempt {at.number} is waited for")
    if at.step == "baseline":
        raise typer.Exit(1)


@app.command()
def stop(campaign: CampaignArgument, reason: Annotated[str, typer.Option(help="Why.")] = "stopped by hand") -> None:
    """End a campaign."""
    from atrex.optimize import verbs

    verbs.stop(campaign, reason)
    _status(campaign)


@app.command()
def status(campaign: CampaignArgument, as_json: JsonOption = False) -> None:
    """Where a campaign stands."""
    _status(campaign, as_json)


@app.command()
def log(campaign: CampaignArgument) -> None:
    """A campaign as a story: what was seen, planned, predicted, measured, and decided."""
    from atrex.optimize import verbs

    for text in verbs.log(campaign):
        print(text)


@app.command()
def pack(
    campaign: CampaignArgument, out: Annotated[Path, typer.Option(help="Where the kernel goes.")] = Path("kernel.py")
) -> None:
    """Hand over the accepted kernel: one self-contained file, judged again in a clean process with new seeds."""
    from atrex.optimize.pack import pack as packed
    from atrex.optimize.verbs import supervised

    with _waits(2), supervised(campaign, print) as supervisor:
        found = packed(supervisor.campaign, supervisor.lab, out)
        print(f"{found.path}: {len(found.records)} shapes pass, sha256 {found.sha256}")


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """What Ctrl-C would do, when the time is over; it loses nothing. A campaign that was ended says so."""
    over = threading.Event()

    def interrupt() -> None:
        over.set()
        # A signal to the process may reach any thread of it, and then does not wake this one from what it waits for.
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    timer = threading.Timer(max(seconds, 0.0), interrupt)
    timer.daemon = True
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs behind it
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        if not over.is_set():
            raise
        print("the time for this run is over; what was being measured is measured again when it goes on")
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)


@contextmanager
def _waits(status: int = 0) -> Iterator[None]:
    """Say it and end when the device on another machine has to measure first; with status 0 where what was handed in is
    kept meanwhile."""
    from atrex.optimize.lab import Pending

    try:
        yield
    except Pending as pending:
        print(pending, file=sys.stderr)
        raise typer.Exit(status) from None


def _status(campaign: Path, as_json: bool = False) -> None:
    from atrex.optimize import verbs

    about = verbs.status(campaign)
    if as_json:
        print(json.dumps(about))
        return
    print(
        f"{about['operator']} in {about['dsl']} on {about['chip']}: {about['step']} of iteration {about['iteration']}"
    )
    if about["accepted"]:
        first, now = (f"{v:.3f}" if v is not None else "-" for v in (about["S_baseline"], about["S"]))
        made = f"{about['iterations']} iterations"
        if about["attempts"] != about["iterations"]:
            made += f" with {about['attempts']} attempts"
        print(f"S {first} -> {now}; {made}, {len(about['accepted']) - 1} promoted, session {about['session']}")


def _count(files: list[Path], what: str) -> str:
    return f"{len(files)} {what}{'s' * (len(files) != 1)}"


def _cards(cards: dict[str, str]) -> str:
    return ", ".join(sorted(set(cards.values())))
