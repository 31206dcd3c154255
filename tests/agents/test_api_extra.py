"""Without its extra, the agent for model APIs says what to install; nothing else asks for it."""

from __future__ import annotations

import sys

import pytest

from atrex.agents.base import Choice, get, make
from atrex.errors import UserError


def test_without_its_extra_it_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "litellm", None)
    with pytest.raises(UserError, match=r"litellm is missing: pip install 'atrex\[agents\]'"):
        make(Choice.parse("api:openai/gpt-4o"))


def test_knowing_of_it_does_not_load_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "litellm", raising=False)
    get("api").needs()
    assert "litellm" not in sys.modules
