"""CuTe DSL compiled without a device; whose a kernel is, from the symbols of the cubins."""

import pytest

from tests.compile.one_process import compile_here

pytest.importorskip("cutlass", reason="pip install 'atrex[cutedsl]'")

KERNELS = """
import cutlass, cutlass.cute as cute
@cute.kernel
def {name}(x: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread < cute.size(x):
        x[thread] = (x[thread] * 2).to(x.element_type)
"""
SOURCE = (
    KERNELS.format(name="own_kernel")
    + """
import torch
from cutlass.cute.runtime import from_dlpack
from other import other_kernel

@cute.jit
def launch(x: cute.Tensor, twice: cutlass.Constexpr):
    own_kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))
    if cutlass.const_expr(twice):
        other_kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))

class Model(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
    def forward(self, x, weight):
        ACT
"""
)
COMPILED = """w = from_dlpack(weight, assumed_align=16).mark_layout_dynamic()
        compiled = cute.compile(launch, w, True)
        compiled(w)
        compiled(w)"""


def candidate(act, **more):
    files = {"other.py": KERNELS.format(name="other_kernel")}
    return {"source": SOURCE.replace("ACT", act), "dsl": "cutedsl", "target": "sm_90a", "files": files} | more


CANDIDATES = {
    "compiled": candidate(COMPILED, owners=["mystery_kernel", "nvjet_hsh_64x64"]),
    "direct": candidate("launch(from_dlpack(weight), False)"),
    "broken": candidate("launch(from_dlpack(weight), weight.no_such)"),
    "occupancy": candidate(
        "import cutlass.utils\n        from cutlass.base_dsl.runtime.cuda import get_device_attribute\n"
        "        assert cutlass.utils.HardwareInfo().get_device_multiprocessor_count() == 132\n"
        "        launch(from_dlpack(weight), False)\n        get_device_attribute(1)"
    ),
    "unused": candidate("cute.compile(launch, from_dlpack(weight), True)"),
}


@pytest.fixture(scope="module")
def seen():
    names = compile_here({"first": CANDIDATES["compiled"]})["first"]
    kernels = [a["name"] for a in names["shapes"]["0"]["artifacts"]]
    owners = [*kernels, *(name.replace("own", "other").replace("_0", "_1") for name in kernels)]
    CANDIDATES["compiled"]["owners"] += owners
    return compile_here(CANDIDATES)


def test_kernels_of_the_candidate_s_own_file_are_artifacts_by_their_symbols(seen):
    found = seen["compiled"]["shapes"]["0"]
    assert (found["status"], found["reason"]) == ("compiled", "")
    assert [a["kind"] for a in found["artifacts"]] == ["cubin"]
    assert found["artifacts"][0]["name"].startswith("kernel_cutlass_own_kernel_")
    assert seen["compiled"]["artifacts"][0]["sha256"] == found["artifacts"][0]["sha256"]
    assert seen["compiled"]["missing"] == []


def test_a_kernel_belongs_to_the_file_it_was_traced_from(seen):
    owners = seen["compiled"]["owners"]
    by_kind = {}
    for name, owner in owners.items():
        by_kind.setdefault(owner, []).append(name)
    assert all("own_kernel" in name for name in by_kind["target"]) and len(by_kind["target"]) == 1
    assert all("other_kernel" in name for name in by_kind["dsl"]) and len(by_kind["dsl"]) == 1
    assert by_kind["vendor"] == ["nvjet_hsh_64x64"] and by_kind["unknown"] == ["mystery_kernel"]


def test_a_direct_call_compiles_too(seen):
    found = seen["direct"]["shapes"]["0"]
    assert found["status"] == "compiled" and len(found["artifacts"]) == 1


def test_what_raises_while_launching_fails(seen):
    found = seen["broken"]["shapes"]["0"]
    assert found["status"] == "failed" and "no_such" in found["reason"]


def test_what_only_a_device_knows_is_undetermined(seen):
    found = seen["occupancy"]["shapes"]["0"]
    assert found["status"] == "undetermined" and "asks for a device" in found["reason"], found
    assert len(found["artifacts"]) == 1


def test_what_was_compiled_and_not_launched_shows_nothing(seen):
    assert seen["unused"]["shapes"]["0"]["status"] == "undetermined"
