import pytest

from tests.compile.one_process import compile_here

pytest.importorskip("triton", minversion="3.6", reason="pip install 'triton>=3.6'")

SOURCE = """
import torch, triton, triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

@gluon.jit
def fill(p, N: gl.constexpr, LANES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([1], [LANES], [4], [0])
    gl.store(p + gl.arange(0, N, layout=layout), 1.0)

@triton.jit
def plain(p, N: tl.constexpr):
    tl.store(p + tl.arange(0, N), 2.0)

class Model(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
    def forward(self, x, weight):
        fill[(1,)](x, N=256, LANES=64 if torch.version.hip else 32)
        plain[(1,)](x, N=256)
"""


@pytest.fixture(scope="module")
def seen():
    candidate = {"source": SOURCE, "dsl": "gluon", "owners": ["fill", "plain"]}
    wrong = SOURCE.replace("64 if torch.version.hip else 32", "16")
    return compile_here(
        {
            "nvidia": candidate | {"target": "sm_90"},
            "amd": candidate | {"target": "gfx942"},
            "wrong": {"source": wrong, "dsl": "gluon", "target": "sm_90"},
        }
    )


@pytest.mark.parametrize(("where", "kind"), [("nvidia", "cubin"), ("amd", "hsaco")])
def test_gluon_s_kernels_are_the_target_and_triton_s_are_not(seen, where, kind):
    found = seen[where]["shapes"]["0"]
    assert found["status"] == "compiled", found
    assert [(a["name"], a["kind"]) for a in found["artifacts"]] == [("fill", kind)]
    assert seen[where]["owners"] == {"fill": "target", "plain": "dsl"}


def test_a_layout_that_the_target_cannot_have_fails(seen):
    found = seen["wrong"]["shapes"]["0"]
    assert found["status"] == "failed" and [a["name"] for a in found["artifacts"] if a["reason"]] == ["fill"]
