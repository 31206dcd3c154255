"""The edit classifier on labelled edits (edits/): rules are written on two halves, in turn, and not on the rest."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import yaml

from atrex.optimize.classify import classify, host_side
from atrex.optimize.model import CATEGORIES

EDITS = Path(__file__).parent / "edits"
SEED = 20
# Share filed right at least. Right of 31 open, 31 held out and 35 unseen edits: 18, 22 and 20 by the rules before the
# set was there; 31, 23 and 26 by rules written on the open half; 31, 31 and 30 by rules written on both halves, so that
# the unseen edits alone say what to expect of another edit.
THRESHOLDS = {"open": 30 / 31, "held_out": 29 / 31, "unseen": 28 / 35}


@dataclass(frozen=True)
class Labelled:
    """A kernel edit and the category given to it by hand, None where nothing that a kernel does has changed."""

    name: str
    before: str
    after: str
    category: str | None
    unseen: bool


def patched(source: str, diff: str) -> str:
    """`source` with every part of a diff without line numbers put in; the lines a part replaces occur exactly once."""
    text = f"\n{source}"
    for part in diff.split("@@\n")[1:]:
        lines = part.splitlines()
        old, new = ("\n".join(["", *(line[1:] for line in lines if line[:1] != sign), ""]) for sign in "+-")
        assert text.count(old) == 1, f"occurs {text.count(old)} times: {old}"
        text = text.replace(old, new)
    return text[1:]


@cache
def labelled() -> list[Labelled]:
    found = []
    for path in sorted(EDITS.glob("*/*.yaml")):
        data = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        for edit in data["edits"]:
            category = None if edit["category"] == "none" else edit["category"]
            name = f"{path.parent.name}/{path.stem}/{edit['name']}"
            found.append(
                Labelled(name, data["before"], patched(data["before"], edit["diff"]), category, "unseen" in data)
            )
    return found


@cache
def parts() -> dict[str, list[Labelled]]:
    """Every category's edits, shuffled with SEED, dealt in turn to two halves; and the edits that came later."""
    chance = random.Random(SEED)
    dealt = []
    for category in (*CATEGORIES, None):
        edits = [each for each in labelled() if each.category == category and not each.unseen]
        chance.shuffle(edits)
        dealt += edits
    return {"open": dealt[::2], "held_out": dealt[1::2], "unseen": [each for each in labelled() if each.unseen]}


@cache
def category_of(edit: Labelled) -> str | None:
    return classify(edit.before, edit.after).category


def accuracy(edits: list[Labelled]) -> float:
    return sum(category_of(edit) == edit.category for edit in edits) / len(edits)


def confusion(edits: list[Labelled]) -> str:
    """A row a label, a column a category found."""
    names = [*CATEGORIES, None]
    counts = Counter((edit.category, category_of(edit)) for edit in edits)
    lines = [" " * 16 + "".join(f"{str(name)[:7]:>8}" for name in names)]
    for label in names:
        lines.append(f"{label!s:<16}" + "".join(f"{counts[label, found] or '.':>8}" for found in names))
    return "\n".join(lines)


def test_the_set_has_five_edits_of_every_category_in_two_languages():
    counts = Counter(edit.category for edit in labelled())
    languages = Counter(edit.name.partition("/")[0] for edit in labelled() if edit.category)
    assert min(counts[category] for category in CATEGORIES) >= 5
    assert min(languages[language] for language in ("triton", "cpp")) >= 24


@pytest.mark.parametrize("part", ["open", "held_out", "unseen"])
def test_most_edits_are_filed_as_an_engineer_files_them(part: str):
    edits = parts()[part]
    print(f"\n{part}: {accuracy(edits):.3f} of {len(edits)}\n{confusion(edits)}")
    wrong = [f"{edit.name}: {edit.category}, not {category_of(edit)}" for edit in edits]
    wrong = [line for line, edit in zip(wrong, edits, strict=True) if category_of(edit) != edit.category]
    assert accuracy(edits) >= THRESHOLDS[part], "\n".join(wrong)


@pytest.mark.parametrize("name", ["triton/matmul/deeper-pipeline", "cpp/gemm_cuda/tile-of-thirty-two"])
def test_comments_and_blanks_are_no_edit(name: str):
    source = next(edit.before for edit in labelled() if edit.name == name)
    after = source.replace(
        "    for (int i = 0;", "    // num_warps, __syncthreads(); constexpr int TILE = 64;\n\n    for (int i  =  0;"
    )
    after = after.replace("import torch\n", "import torch  # tl.dot in float16, BLOCK_M = 128\n\n", 1)
    assert after != source
    assert classify(source, after).category is None


@pytest.mark.parametrize("name", ["triton/matmul/deeper-pipeline", "cpp/gemm_cuda/tile-of-thirty-two"])
@pytest.mark.parametrize("broken", ["before", "after", "both"])
def test_a_source_that_does_not_parse_has_no_category(name: str, broken: str):
    edit = next(each for each in labelled() if each.name == name)
    assert classify(edit.before, edit.after).category is not None
    before, after = (
        source.replace("class Model(", "class Model((") if broken in (side, "both") else source
        for side, source in (("before", edit.before), ("after", edit.after))
    )
    assert classify(before, after).category is None


def test_a_constant_renamed_throughout_is_no_edit():
    source = next(edit.before for edit in labelled() if edit.name.startswith("cpp/gemm_cuda"))
    assert classify(source, source.replace("TILE", "kEdge")).category is None


KERNEL = """
import triton
BLOCK = 128
@triton.jit
def scale(x, n, BLOCK: triton.language.constexpr):
    i = triton.language.program_id(0) * BLOCK
def forward(x):
    scale[(132,)](x, 7, BLOCK)
    return x
"""


@pytest.mark.parametrize(
    ("old", "new", "alike"),
    [
        ("program_id(0) * BLOCK", "program_id(0) * BLOCK + 0", True),
        ("def forward", "# a comment\ndef forward", True),
        ("(132,)", "(264,)", False),
        ("BLOCK = 128", "BLOCK = 256", False),
        ("triton.jit", "cute.jit", False),
    ],
)
def test_the_host_side_is_what_launches_a_kernel_and_not_the_kernel(old: str, new: str, alike: bool):
    assert old in KERNEL
    assert (host_side(KERNEL) == host_side(KERNEL.replace(old, new))) == alike


def test_a_cpp_source_is_compiled_and_its_flags_are_the_host_s():
    cpp = '#include <cmath>\nextern "C" void f(int n) { for (int i = 0; i < n; ++i); }'
    source = f'SOURCE = r"""\n{cpp}\n"""\nFLAGS = ["-O3"]\n'
    assert host_side(source) == host_side(source.replace("int i = 0", "int i = 1"))
    assert host_side(source) != host_side(source.replace("-O3", "-O2"))


def test_an_expression_too_deep_to_follow_has_no_category():
    source = next(edit.before for edit in labelled())
    assert classify(source, f"{source}\nx = {' + '.join(['1'] * 900)}\nnum_warps = 8\n").category is None
