"""Mutation testing: wrong kernels die, right ones live, and a hole in the inputs is seen as a survivor."""

from __future__ import annotations

import shutil

import pytest
import torch

from atrex.errors import UserError
from atrex.problems.compare import own_oracle
from atrex.problems.compiled import COMPILED, compiled_shapes
from atrex.problems.lint import CPU_BUDGET, UNLIMITED
from atrex.problems.load import SHIPPED, load_problem, load_suite
from atrex.problems.modules import load_module
from atrex.problems.mutants import Outcome, check_mutants, kill_table
from atrex.problems.skeleton import new_problem

# The smallest shape of each; the whole table is `atrex suite validate --mutants`.
SLOW = (
    "attention_forward", "block_scaled_mm", "chunk_delta_rule_output", "chunk_gated_delta_rule_state",
    "fp8_blockscale_fused_moe", "fused_add_rms_norm", "fused_moe", "fused_rmsnorm_quant", "gated_delta_rule_update",
)  # fmt: skip


def smallest(problem):
    return min(problem.shapes.values(), key=lambda shape: sum_of(problem.work(shape)))


def sum_of(work):
    return work.total_bytes + work.total_flops / 10


@pytest.mark.parametrize(
    "operator",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in load_suite().problems],
)
def test_every_wrong_kernel_dies_and_every_right_one_lives(operator):
    problem = load_problem(SHIPPED / operator)
    table = kill_table(problem, [smallest(problem)], "cpu", UNLIMITED)
    assert not table.unsound, [(row.name, row.seen) for row in table.unsound]
    assert len([row for row in table.rows if row.wrong]) >= 8
    assert len([row for row in table.rows if not row.wrong]) >= 3


@pytest.fixture
def folder(tmp_path):
    return new_problem("scale", tmp_path)


def table_of(folder, mutants=""):
    if mutants:
        (folder / "mutants.py").write_text(mutants)
    problem = load_problem(folder)
    return kill_table(problem, [problem.shapes["0"]], "cpu", CPU_BUDGET)


def test_inputs_that_exercise_nothing_leave_a_survivor(folder):
    path = folder / "input.py"
    path.write_text(path.read_text().replace("1 + 0.5 * torch.randn(hidden_size)", "0 * torch.randn(hidden_size)"))
    table = table_of(folder, 'WRONG = {"no weight": (" + weight.to(acc)", "")}')
    assert "no weight" in [row.name for row in table.unsound]


def test_an_explained_survivor_is_none_to_worry_about(folder):
    text = 'WRONG = {"the same": ("2 * x.to(acc)", "x.to(acc) * 2")}\nSURVIVORS = {"the same": "it is the same"}'
    (row,) = [row for row in table_of(folder, text).rows if row.name == "the same"]
    assert row.sound and set(row.seen.values()) == {None}


def test_a_right_kernel_that_fails_is_unsound(folder):
    text = (
        "import torch\n"
        "class Off(torch.nn.Module):\n    def forward(self, x, weight):\n        return 2 * x\n"
        'RIGHT = {"off": Off}'
    )
    assert [row.name for row in table_of(folder, text).unsound] == ["off"]


def test_a_replacement_that_fits_nothing_is_refused(folder):
    with pytest.raises(UserError, match="is not in reference.py"):
        table_of(folder, 'WRONG = {"x": ("no such text", "")}')


def test_every_operator_has_three_right_kernels():
    for problem in load_suite().problems.values():
        others = load_module(problem.folder / "mutants.py").RIGHT
        # In float64 the reference is another kernel, except where it is judged as it stands.
        assert len(others) + (not own_oracle(problem)) >= 3, problem.operator


def test_every_shipped_mutant_still_fits_its_reference():
    for path in SHIPPED.glob("*/mutants.py"):
        problem = load_problem(path.parent)
        from atrex.problems.mutants import _own

        assert _own(problem).wrong


def test_the_shipped_folder_is_left_alone(tmp_path):
    copy = tmp_path / "rms_norm"
    shutil.copytree(SHIPPED / "rms_norm", copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = {p.name: p.read_bytes() for p in copy.iterdir() if p.is_file()}
    problem = load_problem(copy)
    kill_table(problem, [problem.shapes["15"]], "cpu", CPU_BUDGET)
    assert {p.name: p.read_bytes() for p in copy.iterdir() if p.is_file()} == before


class TestCompiled:
    """The compiled reference as a right kernel. What the compiler itself does is tried in the slow tests."""

    def outcome(self, folder, monkeypatch, compiler):
        monkeypatch.setattr(torch, "compile", compiler)
        problem = load_problem(folder)
        found = check_mutants(problem, problem.shapes["0"], "cpu", 1, compiled={("scale", "0")})
        return {each.name: each for each in found.outcomes}.get(COMPILED)

    def test_what_it_makes_is_judged_like_any_right_kernel(self, folder, monkeypatch):
        assert self.outcome(folder, monkeypatch, lambda model: model) == Outcome(COMPILED, wrong=False)
        outcome = self.outcome(folder, monkeypatch, lambda model: lambda **x: 0.9 * model(**x))
        assert outcome.case == "seed"

    def test_a_failure_of_the_compiler_is_none_of_the_numbers(self, folder, monkeypatch):
        def compiler(model):
            def run(**operands):
                raise RuntimeError("no lowering for\n  this operation")

            return run

        outcome = self.outcome(folder, monkeypatch, compiler)
        assert outcome.case is None
        assert outcome.not_run == "did not compile: RuntimeError: no lowering for this operation"

    def test_it_is_left_out_unless_asked_for(self, folder):
        problem = load_problem(folder)
        names = [each.name for each in check_mutants(problem, problem.shapes["0"], "cpu", 1).outcomes]
        assert names and COMPILED not in names

    def test_smallest_and_largest_of_each_set_of_arguments_are_compiled(self):
        problem = load_problem(SHIPPED / "rms_norm")
        assert compiled_shapes(problem, problem.shapes.values()) == ["15", "14"]
        problem = load_problem(SHIPPED / "mrope")
        sets = {str(shape.init_kwargs) for shape in problem.shapes.values()}
        assert len(sets) > 1 and len(compiled_shapes(problem, problem.shapes.values())) > len(sets)

    @pytest.mark.slow
    @pytest.mark.parametrize("operator", ["silu_and_mul", "moe_topk_gating_softmax"])
    def test_the_compiled_reference_passes(self, operator):
        problem = load_problem(SHIPPED / operator)
        shape = smallest(problem)
        found = check_mutants(problem, shape, "cpu", 1, compiled={(operator, shape.id)})
        (outcome,) = [each for each in found.outcomes if each.name == COMPILED]
        assert (outcome.case, outcome.not_run) == (None, None)


@pytest.mark.parametrize("name", ["wrong", "right"])
def test_a_mutant_without_memory_is_neither_killed_nor_failed(folder, name):
    raising = "import torch\nclass Large(torch.nn.Module):\n    def forward(self, x, weight):\n        {0}\n"
    text = raising.format("raise torch.OutOfMemoryError('too much')") + 'RIGHT = {"large": Large}'
    if name == "wrong":
        text = "WRONG = {'large': ('return (2', 'raise torch.OutOfMemoryError()\\n        return (2')}"
    table = table_of(folder, text)
    (row,) = [row for row in table.rows if row.name == "large"]
    assert row.seen == {} and row.not_run == {"0": "out of memory"} and row.sound
