"""`validate` passes the shipped folders (tests/suite) and names what is wrong with a broken one."""

import pytest
import torch

from atrex.problems import load_problem
from atrex.problems.lint import Budget, validate
from atrex.problems.metadata import FloatCompare
from atrex.problems.wrong import honest_output

from .conftest import edit_json


def failures(folder, **options) -> set[str]:
    problem = load_problem(folder)
    return {finding.check for finding in validate(problem, problem.shapes.values(), **options).failures}


def replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_copy_of_a_shipped_folder_is_sound(folder):
    assert failures(folder) == set()


def test_neutral_operand_is_noticed(folder):
    replace(folder / "reference.py", "* weight.to(acc)", "* (weight.to(acc) * 0 + 1)")
    assert failures(folder) == {"reacts to weight"}


def test_inputs_that_make_a_constant_right_are_noticed(folder):
    replace(
        folder / "input.py",
        "mixed_rows(token_count, hidden_size, torch.bfloat16)",
        "torch.ones(token_count, hidden_size).bfloat16()",
    )
    replace(folder / "input.py", "norm_weight(hidden_size, torch.bfloat16)", "torch.ones(hidden_size).bfloat16()")
    found = failures(folder)
    assert {"out: constant fails", "out: copy of input x fails", "another seed draws other inputs"} <= found


def test_comparison_that_takes_anything_is_noticed(folder):
    edit_json(folder / "metadata.json", lambda m: m["compare"]["out"].update(element_rms=9, rms_floor=9))
    found = failures(folder)
    assert {"out: zero fails", "out: dropped last rows fails", "out: dropped last columns fails"} <= found


def test_comparison_that_rejects_honest_kernels_is_noticed(folder):
    edit_json(folder / "metadata.json", lambda m: m["compare"]["out"].update(rms_factor=1, ulps=0))
    assert failures(folder) == {"an honest kernel passes"}


def test_metadata_that_contradicts_the_tensors_is_noticed(folder):
    edit_json(folder / "metadata.json", lambda m: m["inputs"]["weight"].update(dtype="fp32"))
    assert failures(folder) == {"weight is fp32"}


def test_bytes_that_no_kernel_writes_are_noticed(folder):
    replace(folder / "work.py", "bytes_written=2 *", "bytes_written=4 *")
    from atrex.problems.generate import generate_roofline

    generate_roofline(folder)
    assert failures(folder) == {"Q writes what the outputs hold"}


def test_edited_roofline_time_is_noticed(folder):
    edit_json(folder / "roofline.json", lambda r: r["shapes"]["0"]["roofline_us"].update(H200=1e-9))
    assert failures(folder) == {"roofline.json agrees with work.py and the chips"}


def test_unseeded_inputs_are_noticed(folder):
    replace(folder / "input.py", "import torch\n", "import torch\nCALLS = []\n")
    replace(
        folder / "input.py",
        '    return {\n        "x"',
        '    CALLS.append(torch.randn(len(CALLS)))\n    return {\n        "x"',
    )
    assert "a seed draws the same inputs" in failures(folder)


def test_too_few_held_out_shapes_are_noticed(folder):
    edit_json(folder / "held_out.json", lambda h: h.pop("h3") and h.pop("h2"))
    assert failures(folder) == {"at least 3 held-out shapes, ids h0, h1, ..."}


def test_failing_reference_is_a_finding(folder):
    replace(folder / "reference.py", "wide = x.to(acc)", "wide = x.to(acc) + undefined_name")
    assert failures(folder) == {"runs"}


def test_shapes_over_the_budget_are_listed_with_the_reason(folder):
    problem = load_problem(folder)
    report = validate(problem, problem.shapes.values(), budget=Budget(bytes=2000, flops=1e9))
    assert list(report.ran) == ["0"] and list(report.not_run) == ["1"]
    assert "budget" in report.not_run["1"]


@pytest.mark.parametrize("flops", [1e3, 1e9])
def test_flops_count_in_the_budget(folder, flops):
    problem = load_problem(folder)
    report = validate(problem, problem.shapes.values(), budget=Budget(bytes=1e9, flops=flops))
    assert bool(report.not_run) == (flops == 1e3)


def test_an_honest_kernel_rounds_what_it_computes_and_moves_the_rest():
    torch.manual_seed(0)
    output = torch.randn(64, 64, dtype=torch.float16)
    exact = output.double()
    exact[::2] += 1e-5  # the even rows are computed
    honest = honest_output(output, FloatCompare(kind="float"), exact)
    assert torch.equal(honest[1::2], output[1::2]) and not torch.equal(honest[::2], output[::2])


def test_the_same_seed_finds_the_same(folder):
    problem = load_problem(folder)
    first, again = (validate(problem, problem.shapes.values(), seed=3).findings for _ in range(2))
    assert first == again
