"""The text that the judge gets is the Model and what it names, alone."""

import ast

import pytest

from atrex.baselines.source import candidate_text

MODULE = '''"""An adapter."""

from __future__ import annotations

import math
import os
from torch import nn

from somewhere import register

SCALE = math.pi
OTHER = os.sep


@register("a")
class A(nn.Module):
    def forward(self, x):
        return helped(x)


def helped(x):
    return SCALE * x


@register("b")
class B(nn.Module):
    def forward(self, x):
        return OTHER
'''


def test_a_model_takes_along_what_it_names_and_nothing_else():
    text = candidate_text(MODULE, "A", '"""A."""')
    assert "class Model(nn.Module)" in text and "def helped" in text and "import math" in text
    assert "class B" not in text and "import os" not in text and "OTHER" not in text


def test_decorators_of_the_adapter_stay_behind():
    assert "register" not in candidate_text(MODULE, "A", '"""A."""')


def test_a_helpers_decorator_comes_along():
    module = "from functools import cache\n\n\n@cache\ndef f():\n    return 1\n\n\nclass A:\n    x = f()\n"
    text = candidate_text(module, "A", '"""A."""')
    assert "@cache\ndef f" in text and "from functools import cache" in text


def test_what_is_named_only_for_registration_stays_behind():
    module = "def lacks(init, inputs):\n    return None\n\n\n@covers('a', lacks=lacks)\nclass A:\n    pass\n"
    assert "lacks" not in candidate_text(module, "A", '"""A."""')


def test_the_text_is_a_module_of_its_own():
    tree = ast.parse(candidate_text(MODULE, "B", '"""B."""'))
    assert ast.get_docstring(tree) == "B."
    assert [node.name for node in tree.body if isinstance(node, ast.ClassDef)] == ["Model"]


def test_a_class_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="no class C"):
        candidate_text(MODULE, "C", '"""C."""')
