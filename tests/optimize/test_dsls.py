"""A campaign by hand may leave the DSL to each kernel."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from atrex.errors import UserError
from atrex.evaluate import api, versus
from atrex.optimize.lab import LocalLab
from atrex.optimize.machine import Position
from atrex.optimize.setup import Wish, begin
from atrex.optimize.view import task

HEAD = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x, weight): return x\n"
TRITON = "import triton\nimport triton.language as tl\n" + HEAD
CUDA = "from torch.utils.cpp_extension import load\nSOURCE = '__global__ void kernel() {}'\n" + HEAD


def wish(dsl, **more):
    return Wish(operator="rms_norm", dsl=dsl, device="cuda:0", shapes="0,1", chip="H200", **more)


@pytest.fixture
def kernels(tmp_path):
    """Three files: in Triton, in CUDA C++, and one that names no DSL."""
    found = []
    for name, text in (("triton", TRITON), ("cuda", CUDA), ("neither", HEAD)):
        found.append(tmp_path / f"{name}.py")
        found[-1].write_text(text)
    return found


def test_each_kernel_is_judged_as_what_its_imports_say(tmp_path, kernels, monkeypatch):
    settings = begin(tmp_path / "c", wish("triton,cuda")).settings
    judged = []
    monkeypatch.setattr(api, "evaluate", lambda source, *a, dsl, **k: judged.append(dsl) or [])
    for kernel in kernels:
        LocalLab(settings).judge(kernel)
    assert judged == ["triton", "cuda", "triton"]


def test_a_contest_sets_kernels_of_two_dsls_against_each_other(tmp_path, kernels, monkeypatch):
    settings = begin(tmp_path / "c", wish("triton,cuda")).settings
    seen = []

    @contextmanager
    def bout(match):
        seen.extend(versus._units(match, "cuda"))
        yield SimpleNamespace(round=None)

    monkeypatch.setattr(versus, "Bout", bout)
    with LocalLab(settings).heat(*kernels[:2]):
        pass
    assert [(a.dsl, b.dsl) for a, b in seen] == [("triton", "cuda")] * 2


def test_one_dsl_counts_whatever_a_kernel_imports(tmp_path, kernels, monkeypatch):
    settings = begin(tmp_path / "c", wish("triton")).settings
    judged = []
    monkeypatch.setattr(api, "evaluate", lambda source, *a, dsl, **k: judged.append(dsl) or [])
    LocalLab(settings).judge(kernels[1])
    assert judged == ["triton"]


def test_the_task_says_what_every_dsl_asks_for(tmp_path):
    said = task(begin(tmp_path / "c", wish("triton,cuda")), Position("baseline", 0))
    assert "rms_norm in triton or cuda on H200" in said
    assert "triton.jit" in said and "__global__" in said


@pytest.mark.parametrize(
    ("dsl", "more", "why"),
    [
        ("triton,tritn", {}, "unknown 'tritn'"),
        ("triton,triton", {}, "named twice"),
        ("triton,cpp", {}, "cpp: does not run on cuda"),
        ("triton,cuda", {"agent": "tuner"}, "an agent is asked for one DSL"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(tmp_path, dsl, more, why):
    with pytest.raises(UserError, match=why):
        begin(tmp_path / "c", wish(dsl, **more))
