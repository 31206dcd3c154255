"""`atrex optimize bundle`, `serve-bundle`, `ingest`: a campaign whose device is on another machine."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from atrex.cli.optimize import CampaignArgument, JsonOption


def register(app: typer.Typer) -> None:
    """Put the commands beside the others of `atrex optimize`."""
    app.command()(bundle)
    app.command("serve-bundle")(serve_bundle)
    app.command()(ingest)


def bundle(
    campaign: CampaignArgument,
    out: Annotated[Path, typer.Argument(metavar="OUT.tar", help="Where the question goes.")],
    as_json: JsonOption = False,
) -> None:
    """Write what the campaign's next step needs from the device: kernels, problem, question. Asked twice, it is one."""
    from atrex.optimize.ask import ask
    from atrex.optimize.bundle import write_bundle
    from atrex.optimize.lab import Pending
    from atrex.optimize.machine import Supervisor, position
    from atrex.optimize.served import ServedLab
    from atrex.optimize.store import Campaign

    opened = Campaign(campaign)
    with opened.held():
        with suppress(Pending):  # that is the step that is asked about
            Supervisor(opened, ServedLab(opened), (lambda line: None) if as_json else print).advance()
        asked, files = ask(opened, position(opened))
        write_bundle(out, asked, files)
    if as_json:
        print(json.dumps({"bundle": asked.id, "step": asked.step, "iteration": asked.number, "file": str(out)}))
        return
    print(f"{out}: {asked.what}, {len(files)} files, bundle {asked.id[:8]}")
    print(
        f"there: atrex optimize serve-bundle {out.name} RESULT.tar; here: atrex optimize ingest {campaign} RESULT.tar"
    )


def serve_bundle(
    question: Annotated[Path, typer.Argument(metavar="OUT.tar", help="What atrex optimize bundle wrote.")],
    result: Annotated[Path, typer.Argument(metavar="RESULT.tar", help="Where the measurements go, a new file.")],
    device: Annotated[str | None, typer.Option(help="cpu or cuda:N; default: what the campaign names.")] = None,
) -> None:
    """Measure what a bundle asks for, on the machine that has the device."""
    from atrex.optimize.serve import serve

    answer = serve(question, result, device, print)
    print(f"{result}: {answer.device_name}, {answer.seconds:.1f} s, for bundle {answer.bundle[:8]}")


def ingest(
    campaign: CampaignArgument,
    result: Annotated[Path, typer.Argument(metavar="RESULT.tar", help="What atrex optimize serve-bundle wrote.")],
    as_json: JsonOption = False,
) -> None:
    """Take measurements in and go on; what belongs to something else is refused. Twice is as good as once."""
    from atrex.optimize.machine import position, words
    from atrex.optimize.served import ingest as take_in
    from atrex.optimize.store import Campaign

    opened = Campaign(campaign)
    with opened.held():
        new = take_in(opened, result, (lambda line: None) if as_json else print)
        at = position(opened)
    if as_json:
        print(json.dumps({"new": new, "step": at.step, "iteration": at.number}))
        return
    print(("" if new else f"{result}: is in already; ") + f"the campaign waits for {words(at)}")
