"""Knobs are found in the syntax tree of a source and set there, and nothing else of it changes."""

from __future__ import annotations

import pytest

from atrex.agents.tuner.knobs import Knob, find, render, values
from atrex.errors import UserError

SOURCE = '''"""A kernel; größer is not faster."""

from typing import Literal

import math

UNROLL: Literal[1, 2, 4, 8] = 4  # steps
ORDER: Literal["rows", "columns"] = "rows"; STREAM: Literal[True, False] = True
WIDE: Literal[
    128,
    256,
] = 128
SOURCE = f"#define UNROLL {UNROLL}\\n" + r"""for (;;) { /* UNROLL */ }"""
'''


def test_knobs_are_module_constants_with_a_literal_space():
    assert find(SOURCE) == (
        Knob("UNROLL", (1, 2, 4, 8), 4),
        Knob("ORDER", ("rows", "columns"), "rows"),
        Knob("STREAM", (True, False), True),
        Knob("WIDE", (128, 256), 128),
    )


@pytest.mark.parametrize(
    "head", ["import typing\nA: typing.Literal[1, 2] = 1", "from typing import Literal as L\nA: L[1, 2] = 1",
             "import typing as t\nA: t.Literal[1, 2] = 1"],
)  # fmt: skip
def test_literal_by_any_name_is_a_space(head):
    assert find(head) == (Knob("A", (1, 2), 1),)


@pytest.mark.parametrize(
    "source",
    [
        "A = 1",
        "A: int = 1",
        "A: Literal[1, 2] = 1",
        "from typing import Literal\nA: Literal[1, 2]",
        "from typing import Literal\ndef f():\n    A: Literal[1, 2] = 1",
        "from typing import Literal\nclass C:\n    A: Literal[1, 2] = 1",
    ],
)
def test_what_is_no_knob(source):
    assert find(source) == ()


def test_a_set_knob_changes_its_value_alone():
    changed = render(SOURCE, {"UNROLL": 8, "ORDER": "columns", "WIDE": 256})
    expected = SOURCE.replace("= 4 ", "= 8 ").replace('= "rows"', "= 'columns'").replace("] = 128", "] = 256")
    assert changed == expected and values(find(changed)) == {
        "UNROLL": 8, "ORDER": "columns", "STREAM": True, "WIDE": 256,
    }  # fmt: skip


def test_constants_in_strings_follow():
    space: dict = {}
    exec(render(SOURCE, {"UNROLL": 2}), space)
    assert space["SOURCE"].startswith("#define UNROLL 2\n")


def test_plain_leaves_constants_without_a_space():
    plain = render(SOURCE, {"UNROLL": 8}, plain=True)
    assert find(plain) == () and "Literal" not in plain
    assert "\nUNROLL = 8  # steps\nORDER = 'rows'; STREAM = True\nWIDE = 128\n" in plain


def test_an_import_that_something_else_uses_stays():
    source = "from typing import Any, Literal\nA: Literal[1, 2] = 1\ndef f(x: Literal['a']) -> Any: ...\n"
    assert render(source, {}, plain=True) == source.replace("A: Literal[1, 2] = 1", "A = 1")
    source = "from typing import Any, Literal\nA: Literal[1, 2] = 1\nx: Any = 3\n"
    assert render(source, {"A": 2}, plain=True) == "from typing import Any\nA = 2\nx: Any = 3\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def", "kernel.py:1: not Python"),
        ("from typing import Literal\nA: Literal[1, 2] = 3", r"kernel.py:2: A = 3; expected one of its own 1, 2"),
        ("from typing import Literal\nA: Literal[1, 2] = True", "A = True; expected one of its own"),
        ("from typing import Literal\nA: Literal[1, f()] = 1", r"A: f\(\); expected a number"),
        ("from typing import Literal\nA: Literal[1, 2] = 1\nA = 2", "kernel.py:3: A is assigned again"),
    ],
)
def test_a_broken_knob_is_one_line(source, said):
    with pytest.raises(UserError, match=said):
        find(source, "kernel.py")


@pytest.mark.parametrize(
    ("chosen", "said"), [({"UNROLL": 3}, "UNROLL = 3; expected one of 1, 2, 4, 8"), ({"ROLL": 1}, "ROLL is no knob")]
)
def test_a_value_outside_of_the_space_is_refused(chosen, said):
    with pytest.raises(UserError, match=said):
        render(SOURCE, chosen, "kernel.py")
