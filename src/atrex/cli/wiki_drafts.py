"""`atrex wiki drafts`: what campaigns have found, as drafts of cards."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def drafts(
    campaigns: Annotated[list[Path] | None, typer.Argument(metavar="CAMPAIGN", help="Campaigns' folders.")] = None,
    to: Annotated[Path | None, typer.Option(help="The folder of the drafts; default: wiki-drafts.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Draft a card for each confirmed gain of campaigns; without one, list the drafts. None is published by this.

    A draft that is there already stays as it is. docs/wiki.md says how a draft becomes a card.
    """
    from atrex.optimize.drafts import draft_campaign
    from atrex.optimize.store import Campaign
    from atrex.wiki.check import checkout
    from atrex.wiki.drafts import FOLDER, check_drafts
    from atrex.wiki.load import load_wiki

    folder = to or FOLDER
    written = [each for path in campaigns or [] for each in draft_campaign(Campaign(path), folder)]
    found, findings = check_drafts(folder, load_wiki(), checkout())
    left = {draft.id: [finding for finding in findings if finding.card == draft.id] for draft in found}
    if as_json:
        about = [{"id": draft.id, "title": draft.title, "left": [asdict(each) for each in left[draft.id]]}
                 for draft in found]  # fmt: skip
        new = [str(each.path) for each in written if each.new]
        print(json.dumps({"folder": str(folder), "new": new, "drafts": about}, indent=2))
        return
    for each in written:
        print(f"{each.path}{'' if each.new else ': was there already, left as it is'}")
    if campaigns:
        new = sum(each.new for each in written)
        print(f"{len(written)} confirmed gains, {new} new drafts; atrex wiki check says what is left to do")
        return
    for draft in found:
        print(f"{draft.id}: {draft.title} ({len(left[draft.id])} things to mend)")
    print(f"{len(found)} drafts in {folder}")
