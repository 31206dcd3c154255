"""`atrex mcp`: the wiki as tools for coding agents."""

from __future__ import annotations


def mcp() -> None:
    """Serve the wiki as Model Context Protocol tools over standard input and output.

    A client starts it: `claude mcp add atrex -- atrex mcp`, or {"command": "atrex", "args": ["mcp"]} in its settings.
    """
    from atrex.wiki.server import serve

    serve()
