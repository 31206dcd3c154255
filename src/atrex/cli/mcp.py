"""`atrex mcp`: the wiki, and campaigns, as tools for coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_ABOUT_CAMPAIGNS = (
    "Campaigns make one kernel faster, every claim measured: campaign_next says what is wanted, campaign_plan and "
    "campaign_submit hand it in, and campaign_next goes on."
)


def mcp(
    campaign: Annotated[
        list[Path] | None, typer.Option(help="Also the verbs of this campaign; may be given several times.")
    ] = None,
) -> None:
    """Serve the wiki as Model Context Protocol tools over standard input and output, and campaigns that are named.

    A client starts it: `claude mcp add atrex -- atrex mcp`, or {"command": "atrex", "args": ["mcp"]} in its settings.
    """
    from atrex.wiki.server import serve

    if not campaign:
        serve()
        return
    from atrex.optimize.tools import campaign_tools

    serve(campaign_tools(campaign), _ABOUT_CAMPAIGNS)
