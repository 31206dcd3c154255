"""Problem folders and suites that are not sound: one line that names file, field and expectation, and a bad exit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from atrex.cli.main import main
from atrex.problems.generate import generate_roofline
from atrex.problems.load import SHIPPED
from atrex.problems.release import release
from atrex.problems.skeleton import new_problem


@pytest.fixture
def folder(tmp_path):
    """A sound operator, in a suite of its own."""
    return new_problem("scale", tmp_path / "suite")


def edit(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.fixture
def atrex(monkeypatch, capsys):
    """The command in this process: exit status, stdout, stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["atrex", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        return end.value.code, told.out, told.err

    return run


@pytest.fixture
def refused(atrex):
    """A user error: exit status 2, and one line on stderr that says all of `texts`."""

    def check(arguments, *texts):
        code, out, err = atrex(*arguments)
        assert code == 2 and not out
        (line,) = err.strip().splitlines()
        assert line.startswith("error: ")
        for text in texts:
            assert text in line

    return check


@pytest.fixture
def found(atrex):
    """A finding: exit status 1, and one line of `suite validate` that says all of `texts`."""

    def check(folder, *texts):
        code, out, _ = atrex("suite", "validate", folder)
        assert code == 1
        lines = [line for line in out.splitlines() if line.lstrip().startswith("FAILED")]
        assert any(all(text in line for text in texts) for line in lines), lines

    return check


@pytest.mark.parametrize("name", ["reference.py", "input.py", "shapes.json", "metadata.json", "roofline.json"])
def test_a_missing_file(folder, refused, name):
    (folder / name).unlink()
    refused(["suite", "validate", folder], f"scale/{name}: missing file", "a problem folder holds reference.py")


def test_a_missing_file_of_the_evaluators(folder, found):
    (folder / "held_out.json").unlink()
    found(folder, "folder", "held_out.json: missing")


def test_an_extra_file(folder, found):
    (folder / "solution.py").write_text("")
    found(folder, "solution.py: expected no file but reference.py")


def test_metadata_names_another_output(folder, found):
    edit(
        folder / "metadata.json", lambda m: m.update(outputs={"y": {"dtype": "bf16"}}, compare={"y": {"kind": "float"}})
    )
    path = folder / "reference.py"
    path.write_text(
        path.read_text().replace("return (2", 'return {"out": (2').replace(".to(x.dtype)\n", ".to(x.dtype)}\n")
    )
    found(folder, "outputs are those of metadata", "metadata.json: outputs: y; the code gives out")


def test_metadata_states_another_dtype(folder, found):
    edit(folder / "metadata.json", lambda m: m["outputs"]["out"].update(dtype="fp32"))
    found(folder, "out is fp32", "metadata.json: outputs.out.dtype: the code gives bf16")


def test_metadata_lists_other_shapes(folder, found):
    edit(folder / "metadata.json", lambda m: m["shapes"].pop("1"))
    found(folder, "metadata lists the same shapes", "metadata.json: 0")


def test_outputs_of_another_size_than_the_work_says(folder, found):
    path = folder / "work.py"
    path.write_text(path.read_text().replace("bytes_written=2 * tokens", "bytes_written=4 * tokens"))
    generate_roofline(folder)
    found(folder, "shape 0", "Q writes what the outputs hold", "1024 of 512 bytes")


def test_a_dtype_that_there_is_not(folder, refused):
    edit(folder / "metadata.json", lambda m: m["outputs"]["out"].update(dtype="bf17"))
    refused(["suite", "validate", folder], "scale/metadata.json: outputs.out.dtype", "bf17")


def test_weights_that_do_not_sum_to_one(folder, refused):
    (folder.parent / "weights.json").write_text('{"importance": {"scale": 0.9}}')
    refused(["suite", "validate", folder.parent], "suite/weights.json: importance: sums to 0.9, expected 1")


def test_a_frozen_release_that_was_edited(folder, refused):
    release(folder.parent, "1.0", "first")
    path = folder / "input.py"
    path.write_text(path.read_text() + "\n# another distribution\n")
    for command in (["validate", folder.parent], ["release", "1.0", "--suite", folder.parent]):
        refused(["suite", *command], "release 1.0 is frozen", "scale/input.py")


FOREIGN = {
    "input.py": "import torch\ndef _make_inputs(rows):\n    return {'x': torch.randn(rows, 8)}\n",
    "shapes.json": '{"0": {"init_kwargs": {}, "input_kwargs": {"rows": 4}}}',
    "metadata.json": '{"id": "x", "dtype": "fp32", "input_dtypes": {"x": "fp32"}, "output_dtypes": {"out": "fp32"}}',
    "roofline.json": '{"shapes": {"0": {"semantic_W_flops": {"fp32": 32}, "semantic_Q_read_bytes": 128,'
    ' "semantic_Q_write_bytes": 128}}}',
}
BROKEN = {
    "raises": ("        raise ValueError('no such mode')\n", "no such mode"),
    "needs an absent device": ("        return (2 * x.to('xpu')).cpu()\n", "XPU"),
}
CANDIDATE = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return 2 * x\n"


@pytest.fixture(params=BROKEN)
def foreign(request, tmp_path):
    """A folder made by others whose reference cannot be run here, and what it says then."""
    statement, says = BROKEN[request.param]
    made = tmp_path / "double"
    made.mkdir()
    for name, text in FOREIGN.items():
        (made / name).write_text(text)
    forward = f"import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n{statement}"
    (made / "reference.py").write_text(forward)
    return made, says


def test_a_reference_of_others_that_cannot_run_is_a_finding(foreign, found):
    folder, says = foreign
    found(folder, "shape 0", "runs", says)


def test_a_reference_of_others_that_cannot_run_is_no_failure_of_the_candidate(foreign, tmp_path):
    folder, says = foreign
    (tmp_path / "double.py").write_text(CANDIDATE)
    command = ["eval", "double.py", "--suite", folder, "--device", "cpu", "--seeds", "1", "--out", "run"]
    done = subprocess.run(
        [sys.executable, "-m", "atrex.cli.main", *map(str, command)], cwd=tmp_path, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (record,) = [json.loads(line) for line in (tmp_path / "run" / "units.jsonl").read_text().splitlines()]
    verdict = record["verdict"]
    assert (verdict["status"], verdict["category"]) == ("error", "folder")
    assert says in verdict["reason"] and "\n" not in verdict["reason"]


def test_a_copy_of_a_shipped_folder_needs_no_weights(tmp_path, atrex):
    copy = tmp_path / "silu_and_mul"
    shutil.copytree(SHIPPED / "silu_and_mul", copy, ignore=shutil.ignore_patterns("__pycache__"))
    code, out, _ = atrex("suite", "validate", copy, "--shapes", "0")
    assert code == 0 and "silu_and_mul: sound" in out
