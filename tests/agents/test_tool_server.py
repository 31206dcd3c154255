"""What the tools answer; here without a jail, which is not theirs to keep."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from atrex.agents.tool_server import answer
from atrex.agents.tools import Result


class _Tools:
    def call(self, tool: str, arguments: dict) -> Result:
        return Result(*answer({"tool": tool, "arguments": arguments}))


@pytest.fixture
def tools(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return _Tools()


def test_a_file_is_written_read_and_edited(tools):
    assert not tools.call("write", {"path": "a/b.txt", "content": "one\ntwo\n"}).failed
    assert tools.call("read", {"path": "a/b.txt"}).text == "one\ntwo\n"
    assert not tools.call("edit", {"path": "a/b.txt", "old": "two", "new": "2"}).failed
    assert Path("a/b.txt").read_text() == "one\n2\n"


def test_a_shorter_file_takes_the_place_of_a_longer_one(tools):
    for content in ("a long text", "short"):
        tools.call("write", {"path": "f", "content": content})
    assert tools.call("read", {"path": "f"}).text == "short"


def test_a_long_file_is_read_in_pages(tools):
    tools.call("write", {"path": "f", "content": "".join(f"{i}\n" for i in range(1, 2501))})
    assert tools.call("read", {"path": "f"}).text.endswith("\n1000\n[lines 1 to 1000 of 2500]")
    rest = tools.call("read", {"path": "f", "offset": 2500})
    assert rest.text == "2500\n[lines 2500 to 2500 of 2500]"
    assert tools.call("read", {"path": "f", "offset": 2501}).text == "[no line 2501: it has 2500]"


def test_a_long_line_is_cut_to_the_stated_size(tools):
    tools.call("write", {"path": "f", "content": "x" * 50_000})
    assert tools.call("read", {"path": "f"}).text.endswith("[30000 characters of this line left out]\n[line 1 of 1]")


@pytest.mark.parametrize(
    ("old", "every", "said"),
    [("c", False, "is not in f"), ("a", False, "stands 2 times"), ("", False, "is empty")],
)
def test_an_edit_that_is_not_plain_is_refused(tools, old, every, said):
    tools.call("write", {"path": "f", "content": "a b a"})
    result = tools.call("edit", {"path": "f", "old": old, "new": "z", "every": every})
    assert result.failed and said in result.text and Path("f").read_text() == "a b a"


def test_every_place_is_edited_when_asked(tools):
    tools.call("write", {"path": "f", "content": "a b a"})
    tools.call("edit", {"path": "f", "old": "a", "new": "z", "every": True})
    assert Path("f").read_text() == "z b z"


def test_a_command_tells_its_output_and_status(tools):
    result = tools.call("shell", {"command": "echo out; echo err >&2; exit 3"})
    assert result.failed and result.text == "out\nerr\n[exit status 3]"
    assert tools.call("shell", {"command": "kill -TERM $$"}).text == "[ended by signal 15]"


def test_a_long_output_keeps_its_begin_and_end(tools):
    text = tools.call("shell", {"command": "echo first; seq 100000; echo last"}).text
    assert text.startswith("first\n1\n") and text.endswith("\n100000\nlast\n[exit status 0]")
    assert "bytes left out here]" in text and len(text) < 20_200


def test_a_command_that_hangs_ends_at_its_limit_with_what_it_said(tools):
    began = time.monotonic()
    result = tools.call("shell", {"command": "echo begun; sleep 1000", "timeout": 1})
    assert result.failed and result.text == "begun\n[ended after 1 s, its time limit]"
    assert time.monotonic() - began < 8


def test_what_a_command_leaves_in_the_background_is_not_waited_for(tools):
    began = time.monotonic()
    assert tools.call("shell", {"command": "sleep 1000 & echo up"}).text == "up\n[exit status 0]"
    assert tools.call("shell", {"command": "setsid sleep 1000 & echo up"}).text == "up\n[exit status 0]"
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("read", {}, "path: is missing"),
        ("read", {"path": 3}, "path: expected text"),
        ("read", {"path": "f", "colour": "red"}, "colour: no such argument"),
        ("read", {"path": "none"}, "No such file"),
        ("read", {"path": "."}, "no plain file"),
        ("read", {"path": "/dev/zero"}, "no plain file"),
        ("read", {"path": "a\0b"}, "zero byte"),
        ("shell", {"command": "true", "timeout": "long"}, "timeout: expected a whole number"),
    ],
)
def test_a_call_that_makes_no_sense_is_answered(tools, tool, arguments, said):
    result = tools.call(tool, arguments)
    assert result.failed and said in result.text


def test_a_pipe_that_nobody_writes_to_does_not_stop_the_tools(tools):
    tools.call("shell", {"command": "mkfifo pipe"})
    assert tools.call("read", {"path": "pipe"}).failed and tools.call("write", {"path": "pipe", "content": "x"}).failed
