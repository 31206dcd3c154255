"""Which kernels of a folder are judged when the best ones are asked for."""

import hashlib
import json

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.wiki.best import best_kernels
from atrex.wiki.load import Wiki, parse_card

CARD = """---
id: {name}
kind: kernel
title: A kernel that is measured
arch: [sm_90]
dsl: [triton]
operators: [rms_norm]
kernel: rms_norm/any.py
verified:
  - {{level: {level}, record: results/run, chip: {chip}, sha256: {sha}, date: 2026-01-02, S: {score}}}
---

text
"""


@pytest.fixture
def kernels(tmp_path):
    """kernels(operator, name, score, ...) writes a kernel and keeps its card; kernels.folder, kernels.wiki()."""
    cards = {}

    def add(operator, name, score, chip="H200", level="measured"):
        path = tmp_path / operator / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {operator} {name}\nclass Model: ...\n")
        sha = hashlib.sha256(path.read_bytes()).hexdigest()
        card = f"kernel-{operator}-{name}".replace("_", "-")
        text = CARD.format(name=card, level=level, chip=chip, sha=sha, score=score)
        cards[card] = parse_card(text, "card.md")
        return path

    add.folder, add.wiki = tmp_path, lambda: Wiki(cards)
    return add


def test_the_largest_measured_score_on_the_chip_is_taken(kernels):
    kernels("rms_norm", "slow", 0.3)
    best = kernels("rms_norm", "quick", 0.6)
    kernels("rms_norm", "elsewhere", 0.9, chip="B200")
    kernels("rms_norm", "compiled", 0.9, level="compiled")
    found, without = best_kernels(kernels.folder, ["rms_norm", "l2_norm"], "H200", kernels.wiki())
    assert [(one.path, one.operator, one.set_name) for one in found] == [(best, "rms_norm", str(kernels.folder))]
    assert without == []  # of l2_norm there is no file at all


def test_a_file_that_was_edited_is_another_and_its_operator_is_said_to_have_none(kernels):
    kernels("rms_norm", "quick", 0.6)
    edited = kernels("silu_and_mul", "quick", 0.6)
    edited.write_text(edited.read_text() + "# edited\n")
    found, without = best_kernels(kernels.folder, ["rms_norm", "silu_and_mul"], "H200", kernels.wiki())
    assert [one.operator for one in found] == ["rms_norm"] and without == ["silu_and_mul"]


def test_nothing_measured_is_an_error(kernels):
    kernels("rms_norm", "quick", 0.6)
    with pytest.raises(UserError, match="measured on MI300X"):
        best_kernels(kernels.folder, ["rms_norm"], "MI300X", kernels.wiki())
    with pytest.raises(UserError, match="expected a folder"):
        best_kernels(kernels.folder / "no", ["rms_norm"], "H200", kernels.wiki())


def test_eval_judges_the_best_and_says_which(monkeypatch, tmp_path):
    folder = tmp_path / "kernels"
    (folder / "rms_norm").mkdir(parents=True)
    source = (
        "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, eps):\n        super().__init__()\n"
        "        self.eps = eps\n    def forward(self, x, weight):\n"
        "        return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight.float(), self.eps).to(x.dtype)\n"
    )
    (folder / "rms_norm" / "torch.py").write_text(source)
    (folder / "rms_norm" / "other.py").write_text(source.replace("x.float()", "x"))
    sha = hashlib.sha256(source.encode()).hexdigest()
    card = parse_card(CARD.format(name="kernel-a", level="measured", chip="cpu", sha=sha, score=0.4), "card.md")
    monkeypatch.setattr("atrex.wiki.best.load_wiki", lambda: Wiki({"kernel-a": card}))
    words = ["eval", str(folder), "--best", "--device", "cpu", "--shapes", "46", "--quick", "--json"]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    units = [json.loads(line) for line in (tmp_path / "run" / "units.jsonl").read_text().splitlines()]
    assert [unit["candidate_sha256"] for unit in units] == [sha]
