"""The wiki as tools of the Model Context Protocol, which coding agents speak.

Docstrings are what an agent reads of a tool, so they say what comes back and when to call it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from atrex.errors import UserError


def wiki_search(
    question: str,
    arch: str | None = None,
    dsl: str | None = None,
    kind: str | None = None,
    operator: str | None = None,
    k: int = 8,
) -> dict[str, Any]:
    """Find cards on making a GPU kernel fast: patterns, playbooks per operator, pitfalls, references, hardware sheets.

    question: free text; names of chips, DSLs and operators in it are understood. arch (sm_90, gfx942, ...), dsl
    (triton, gluon, cutedsl, flydsl, cuda, cpp), kind (pattern, playbook, reference, recipe, pitfall, hardware, kernel)
    and operator leave out what does not fit. Returns hits, best first, with id, title and claim, and `why` when there
    are none. Call wiki_show for the text of a card.
    """
    from atrex.wiki.search import Filters, search

    return search(question, Filters(arch, dsl, kind, operator), max(1, min(k, 50))).as_dict()


def wiki_show(card_id: str) -> dict[str, Any]:
    """The whole card: scope, claim and how to test it, text, sources, verification, and related cards by relation.

    Of a kernel `code` is its file, a candidate that can be judged as it is.
    """
    from atrex.wiki.kernels import kernel_code
    from atrex.wiki.load import load_wiki

    wiki = load_wiki()
    card = wiki.card(card_id)
    related = [
        {"relation": edge.name, "card": edge.other, "title": wiki.card(edge.other).title}
        for edge in wiki.related(card_id)
    ]
    code = {"code": kernel_code(card)} if card.kernel else {}
    return card.model_dump(mode="json", exclude_defaults=True) | {"related": related} | code


def wiki_spec(name: str, field: str | None = None) -> dict[str, Any]:
    """A figure of a chip (H200, MI300X) or architecture (sm_90), with its document; without a field, the whole sheet.

    Fields are such as memory.bandwidth, peaks.matrix.bf16, registers.per_thread, shared_memory.per_block; part of a
    name will do. Values are in base units (B/s, FLOP/s, bytes) unless `unit` says otherwise.
    """
    from dataclasses import asdict

    from atrex.wiki.hardware import find_sheet, find_value

    sheet = find_sheet(name)
    if field is None:
        return sheet.as_dict()
    where, value = find_value(sheet, field)
    return asdict(value) | {"card": where.card, "shown": value.shown}


def wiki_advise(evidence_file: str) -> dict[str, Any]:
    """What a profile shows and what to try: symptoms with the time each may win, most first, and cards for each.

    evidence_file: the path of a file that `atrex profile` wrote. `healthy` means that nothing is to be said; `unjudged`
    names symptoms that could not be looked for.
    """
    from atrex.profiling.evidence import read_evidence
    from atrex.wiki.advise import advise

    return advise(read_evidence(Path(evidence_file))).as_dict()


def source_search(source: str, question: str, dsl: str | None = None, k: int = 8) -> dict[str, Any]:
    """Find kernels of an upstream project that was added with `atrex wiki add-source`: symbol, file, lines, address.

    Read the project's licence, which comes back with the answer, before taking anything from it.
    """
    from dataclasses import asdict

    from atrex.wiki.sources import store

    about, places = store.search(source, question, max(1, min(k, 50)), dsl)
    return {"source": about, "places": [asdict(place) for place in places]}


INSTRUCTIONS = "Sourced knowledge on making GPU kernels fast. Search first, then show the card that fits."
TOOLS: tuple[Callable[..., dict[str, Any]], ...] = (wiki_search, wiki_show, wiki_spec, wiki_advise, source_search)


def serve(more: Sequence[Callable[..., dict[str, Any]]] = (), instructions: str = "") -> None:
    """Serve the tools, and `more` of them with what is to be said about them, over standard input and output.

    Returns when the client is gone. Raises UserError without the extra `mcp`.
    """
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ImportError:
        raise UserError("atrex mcp needs the Model Context Protocol's library: pip install 'atrex[mcp]'") from None
    import atrex

    def told(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        @wraps(tool)
        def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
            try:
                return tool(*args, **kwargs)
            except UserError as error:
                raise ToolError(str(error)) from None

        return call

    server = MCPServer(
        "atrex",
        version=atrex.__version__,
        instructions=f"{INSTRUCTIONS} {instructions}".strip(),
    )
    for tool in (*TOOLS, *more):
        server.tool()(told(tool))
    server.run("stdio")
