"""The verbs of campaigns, asked by a real client of `atrex mcp`; the device is on another machine."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from atrex.errors import UserError
from atrex.optimize.machine import position
from atrex.optimize.served import ServedLab
from atrex.optimize.tools import campaign_tools
from tests.optimize.conftest import PLAN
from tests.optimize.lab import kernel
from tests.optimize.test_bundle import Two

pytest.importorskip("mcp", reason="pip install 'atrex[mcp]'")


def session(folders, steps):
    """Runs `steps`, which is given something to call tools with, against a server for these campaigns."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    words = [word for folder in folders for word in ("--campaign", str(folder))]

    async def run():
        parameters = StdioServerParameters(
            command=sys.executable, args=["-m", "atrex.cli.main", "mcp", *words], env=dict(os.environ)
        )
        async with stdio_client(parameters) as (read, write), ClientSession(read, write) as client:
            await client.initialize()

            async def call(name, **arguments):
                answer = await client.call_tool(name, arguments)
                text = answer.content[0].text
                bad = getattr(answer, "is_error", None) or getattr(answer, "isError", False)
                return text if bad else json.loads(text)

            return await steps(client, call)

    return asyncio.run(asyncio.wait_for(run(), 240))


@pytest.fixture
def two(begin, tmp_path):
    supervisor, campaign = begin(width=2, elsewhere=True)
    supervisor.lab = ServedLab(campaign)
    return Two(supervisor, campaign, tmp_path)


def test_a_client_takes_a_campaign_from_the_first_kernel_to_its_end(two):
    async def steps(client, call):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert {f"campaign_{verb}" for verb in ("next", "plan", "submit", "status", "log", "stop")} <= set(tools)
        assert "wiki_search" in tools and all(tool.description for tool in tools.values())
        first = await call("campaign_next")
        assert (first["step"], first["most"]) == ("baseline", 1) and "first correct kernel" in first["task"]
        kept = await call("campaign_submit", kernels=[kernel()])
        assert kept["step"] == "validation" and "atrex optimize bundle" in kept["waits"]
        assert "atrex optimize bundle" in (await call("campaign_next"))["waits"]
        two.trip()
        asked = await call("campaign_next", campaign=two.campaign.path.name)
        assert (asked["step"], asked["most"]) == ("plan", 2)
        plans = [PLAN.model_dump(), PLAN.model_dump() | {"change": "larger tiles", "category": "tiling"}]
        assert (await call("campaign_plan", plans=plans))["step"] == "candidate"
        view = two.campaign.path / "view"
        (view / "a.py").write_text(kernel(1.2))
        (view / "b.py").write_text(kernel(1.5))
        assert "waits" in await call("campaign_submit", files=["a.py", "b.py"])
        two.trip()
        status = await call("campaign_status")
        assert (status["step"], status["accepted"], status["attempts"]) == ("stop", [0, 2], 2)
        assert "not_selected, measured" in "\n".join((await call("campaign_log"))["lines"])
        assert (await call("campaign_stop", reason="enough"))["step"] == "done"
        assert (await call("campaign_next"))["task"] is None

    session([two.campaign.path], steps)
    assert position(two.campaign).step == "done" and two.campaign.kernel.read_text() == kernel(1.5)


def test_errors_are_the_command_lines_and_leave_the_campaign_as_it_was(two, begin, tmp_path):
    _, other = begin("other")
    _, outside = begin("outside")
    (tmp_path / "secret.py").write_text("class Model: pass\n")

    async def steps(client, call):
        here = {"campaign": "campaign"}
        assert "waits for a first kernel" in await call("campaign_plan", plans=[PLAN.model_dump()], **here)
        assert "plan 1: gain" in await call("campaign_plan", plans=[PLAN.model_dump() | {"gain": 0}], **here)
        assert "kernels or files" in await call("campaign_submit", **here)
        assert "lies elsewhere" in await call("campaign_submit", files=["../../secret.py"], **here)
        assert "lies elsewhere" in await call("campaign_submit", files=[str(tmp_path / "secret.py")], **here)
        assert "lies elsewhere" in await call("campaign_submit", files=["../campaign.json"], **here)
        for asked in ("outside", str(outside.path), "../outside"):
            assert "is not served here" in await call("campaign_status", campaign=asked)
        assert "expected one of" in await call("campaign_status")
        assert (await call("campaign_status", campaign=str(other.path)))["step"] == "baseline"

    session([two.campaign.path, other.path], steps)
    assert position(two.campaign).step == "baseline" and not two.campaign.numbers


def test_a_link_out_of_the_view_is_not_followed(two, tmp_path):
    (tmp_path / "secret.py").write_text("class Model: pass\n")
    view = two.campaign.path / "view"
    view.mkdir()
    (view / "a.py").symlink_to(tmp_path / "secret.py")
    submit = campaign_tools([two.campaign.path])[2]
    with pytest.raises(UserError, match="lies elsewhere"):
        submit(files=["a.py"])


def test_a_folder_that_is_no_campaign_is_not_served(tmp_path):
    with pytest.raises(UserError, match="no campaign.json"):
        campaign_tools([tmp_path])
