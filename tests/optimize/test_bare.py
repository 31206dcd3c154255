"""A kernel that belongs to no suite: the problem made of its reference, and what is counted of it."""

from __future__ import annotations

import json

import pytest
import torch

from atrex.errors import UserError
from atrex.optimize.bare import Bare, begin_bare
from atrex.optimize.count import count
from atrex.optimize.machine import position
from atrex.optimize.setup import Wish
from atrex.problems.lint import check_folder
from atrex.problems.load import load_suite

REFERENCE = '''
import torch
from torch import nn


class Model(nn.Module):
    """out = x * scale, row by row."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x, scale):
        acc = torch.promote_types(x.dtype, torch.float32)
        return (x.to(acc) * scale.to(acc) * self.factor).to(x.dtype)


'''
INPUTS = """
def make_inputs(tokens, hidden):
    return {"x": torch.randn(tokens, hidden).bfloat16(), "scale": torch.randn(hidden).bfloat16()}


SHAPES = [
    {"init_kwargs": {"factor": 2.0}, "input_kwargs": {"tokens": tokens, "hidden": 64}} for tokens in (8, 32)
]
"""
PLAIN = """
def get_inputs():
    return [torch.randn(8, 64).bfloat16(), torch.randn(64).bfloat16()]


def get_init_inputs():
    return [2.0]
"""
WORK = """
from atrex.roofline.work import Work


def work(init_kwargs, input_kwargs):
    return Work({"vector": {"fp32": 7}}, 11, 13)
"""


@pytest.fixture
def begun(tmp_path):
    """Begins a campaign of a bare kernel: (campaign, what was told)."""

    def make(reference=REFERENCE + INPUTS, work=None, operator=""):
        (tmp_path / "kernel.py").write_text("class Model: pass\n")
        (tmp_path / "reference.py").write_text(reference)
        if work:
            (tmp_path / "work.py").write_text(work)
        told = []
        bare = Bare(tmp_path / "kernel.py", tmp_path / "reference.py", tmp_path / "work.py" if work else None)
        return begin_bare(tmp_path / "campaign", Wish(operator, "cpp", "cpu"), bare, told.append), told

    return make


def test_it_becomes_a_problem_and_the_kernel_is_the_first_to_be_judged(begun):
    campaign, _ = begun(operator="scaled_rows")
    assert campaign.settings.operator == "scaled_rows" and campaign.settings.shapes == ["0", "1"]
    assert campaign.candidate(0).read_text() == "class Model: pass\n" and position(campaign).step == "validation"
    folder = campaign.path / "problem" / "scaled_rows"
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert names == {"reference.py", "input.py", "shapes.json", "metadata.json", "roofline.json"}


def test_inputs_as_a_plain_list_do_too(begun):
    campaign, _ = begun(REFERENCE + PLAIN)
    problem = load_suite(campaign.settings.suite_path).problem("kernel")
    [shape] = problem.shapes.values()
    assert list(problem.make_inputs(shape, 1, "cpu")) == ["x", "scale"] and dict(shape.init_kwargs) == {"factor": 2.0}


def test_what_is_counted_is_marked_as_estimated(begun):
    campaign, told = begun()
    assert campaign.roofline.estimated and "an estimate" in told[0]
    assert campaign.roofline.shapes["1"].bytes_moved == 2 * (32 * 64) * 2 + 64 * 2
    entry = json.loads((campaign.settings.suite_path / "roofline.json").read_text())["shapes"]["1"]
    assert entry["estimated"] is True and entry["flops"] == {"vector": {"fp32": 2 * 32 * 64}}


def test_what_work_py_says_counts_and_is_no_estimate(begun):
    campaign, _ = begun(work=WORK)
    assert not campaign.roofline.estimated and campaign.roofline.shapes["0"].flops == 7
    faults = [f for f in check_folder(load_suite(campaign.settings.suite_path).problem("kernel")) if not f.passed]
    assert [f.check for f in faults if "roofline" in f.check] == []


def test_a_reference_that_runs_in_float64_is_judged_by_that_run(begun):
    campaign, _ = begun()
    metadata = load_suite(campaign.settings.suite_path).problem("kernel").metadata
    assert metadata.oracle == "float64" and metadata.compare["out"].kind == "float"


def test_one_that_does_not_is_judged_by_as_it_stands_and_that_is_said(begun):
    campaign, told = begun(REFERENCE.replace("x.to(acc)", "x.view(torch.int16).view(torch.bfloat16).to(acc)") + INPUTS)
    metadata = load_suite(campaign.settings.suite_path).problem("kernel").metadata
    assert metadata.oracle == "declared" and metadata.compare["out"].kind == "published"
    assert "does not run in float64" in told[-1]


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("import torch\n" + INPUTS, "no class Model"),
        (REFERENCE, "nothing makes inputs"),
        (REFERENCE + INPUTS.partition("SHAPES")[0], "no SHAPES"),
        (REFERENCE.replace("self.factor = factor", "self.w = nn.Parameter(torch.ones(4))") + INPUTS, "its own weights"),
        (REFERENCE.replace("acc = torch", "x.mul_(2); acc = torch") + INPUTS, "changes its operands"),
        (REFERENCE.replace(".to(x.dtype)", ".to(x.dtype), 1") + INPUTS, "returns tuple"),
        (REFERENCE.replace("self.factor)", "missing)") + INPUTS, "forward: NameError"),
    ],
)
def test_what_no_problem_can_be_made_of_is_one_line_and_leaves_nothing(begun, tmp_path, reference, said):
    with pytest.raises(UserError, match=said) as raised:
        begun(reference)
    assert "\n" not in str(raised.value) and not (tmp_path / "campaign").exists()


class _Call(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *operands):
        return self.function(*operands)


def counted(function, **inputs):
    return count(_Call(function), inputs)[0]


def test_products_count_in_the_dtype_before_they_were_widened():
    x, w = torch.randn(8, 16).bfloat16(), torch.randn(16, 32).bfloat16()
    work = counted(lambda x, w: (x.float() @ w.float().t().t()).bfloat16(), x=x, w=w)
    assert work.flops == {"matrix": {"bf16": 2 * 8 * 16 * 32}}
    assert (work.bytes_read, work.bytes_written) == (2 * (8 * 16 + 16 * 32), 2 * 8 * 32)


def test_a_gather_reads_each_row_that_is_addressed_once():
    table, index = torch.randn(1000, 8), torch.tensor([3, 3, 5, -1])
    work = counted(lambda table, index: table[index], table=table, index=index)
    assert work.bytes_read == 3 * 8 * 4 + 4 * 8 and work.bytes_written == 4 * 8 * 4


def test_a_slice_reads_no_more_than_itself_and_twice_is_once():
    x = torch.randn(100, 8)
    work = counted(lambda x: x[:10].exp() + x[:10], x=x)
    assert work.bytes_read == 10 * 8 * 4


def test_attention_counts_its_two_products():
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    work = counted(torch.nn.functional.scaled_dot_product_attention, q=q, k=k, v=v)
    assert work.flops["matrix"] == {"fp32": 2 * 2 * (2 * 16 * 16 * 8)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "expected --problem OP, or --kernel FILE"),
        (["--kernel", "k.py"], "expected --reference FILE"),
        (["--problem", "rms_norm", "--work", "w.py"], "belongs to a bare kernel"),
        (["--kernel", "k.py", "--reference", "r.py", "--suite", "s"], "is in no suite"),
    ],
)
def test_options_that_do_not_fit_together_are_one_clear_line(tmp_path, options, said):
    from typer.testing import CliRunner

    from atrex.cli.optimize import app

    found = CliRunner().invoke(app, ["init", "--dsl", "cpp", "--dir", str(tmp_path / "c"), *options])
    assert isinstance(found.exception, UserError) and said in str(found.exception)
