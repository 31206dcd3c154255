"""`atrex mcp`, asked by a real client over standard input and output."""

import asyncio
import json
import os
import sys

import pytest

from atrex.errors import UserError
from atrex.wiki import server
from tests.wiki.synthetic import evidence

pytest.importorskip("mcp", reason="pip install 'atrex[mcp]'")


def ask(cache, *calls):
    """The names of all tools, and the answers to calls (name, arguments) of one session."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def session():
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "atrex.cli.main", "mcp"],
            env={**os.environ, "ATREX_CACHE_DIR": str(cache)},
        )  # fmt: skip
        async with stdio_client(parameters) as (read, write), ClientSession(read, write) as client:
            await client.initialize()
            tools = (await client.list_tools()).tools
            return tools, [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(asyncio.wait_for(session(), 120))


def body(answer):
    assert not failed(answer), answer
    return json.loads(answer.content[0].text)


def failed(answer):
    return getattr(answer, "is_error", None) or getattr(answer, "isError", False)


def test_a_client_lists_the_tools_and_gets_answers(tmp_path):
    profile = tmp_path / "evidence.json"
    profile.write_text(evidence("spilling").model_dump_json())
    tools, answers = ask(
        tmp_path,
        ("wiki_search", {"question": "rms_norm playbook", "k": 3}),
        ("wiki_show", {"card_id": "playbook-rms-norm"}),
        ("wiki_spec", {"name": "H200", "field": "memory.bandwidth"}),
        ("wiki_advise", {"evidence_file": str(profile)}),
        ("wiki_show", {"card_id": "playbook-rmsnorm"}),
        ("wiki_search", {"question": "x", "arch": "sm_91"}),
    )
    assert {tool.name for tool in tools} == {tool.__name__ for tool in server.TOOLS}
    assert all(tool.description for tool in tools)
    found, shown, value, advice, *refused = answers
    assert "playbook-rms-norm" in [hit["id"] for hit in body(found)["hits"]]
    assert body(shown)["sources"] and "## Regime" in body(shown)["body"]
    assert (body(value)["value"], body(value)["card"]) == (4.8e12, "chip-h200")
    assert body(advice)["symptoms"][0]["id"] == "register-spill"
    assert all(failed(answer) for answer in refused)
    assert "did you mean playbook-rms-norm" in refused[0].content[0].text
    assert "did you mean sm_90" in refused[1].content[0].text


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    with pytest.raises(UserError, match=r"pip install 'atrex\[mcp\]'"):
        server.serve()
