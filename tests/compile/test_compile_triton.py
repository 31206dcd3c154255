"""What the compile gate says of Triton candidates, all in one process without a device."""

import pytest

from tests.compile.one_process import compile_here

pytest.importorskip("triton", reason="pip install 'atrex[triton]'")

HEAD = """
import torch, triton, triton.language as tl
from other import helper_kernel

@triton.jit
def fill(p, N: tl.constexpr):
    tl.store(p + tl.arange(0, N), 1.0)

@triton.jit(do_not_specialize=["n"])
def count(p, n):
    tl.store(p, n)

class Model(torch.nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(16))
        self.register_buffer("table", torch.arange(4))
    def forward(self, *operands):
"""

OTHER = """
import triton, triton.language as tl
@triton.jit
def helper_kernel(p, N: tl.constexpr):
    tl.store(p + tl.arange(0, N), 2.0)
"""

TUNED = """
import torch, triton, triton.language as tl
def prune(configs, nargs, **kwargs):
    return [c for c in configs if c.kwargs["N"] != 4096]
@triton.autotune([triton.Config({"N": n}) for n in (64, 128, 256, 4096)], key=["size"],
                 prune_configs_by={"early_config_prune": prune})
@triton.jit
def tuned(p, size, N: tl.constexpr):
    tl.store(p + tl.arange(0, N), 1.0)
@triton.autotune([triton.Config({"N": 16}), triton.Config({"N": 128}, num_stages=8)], key=[])
@triton.jit
def greedy(p, N: tl.constexpr):
    a = tl.load(p + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :])
    for i in range(100):
        b = tl.load(p + i * N * N + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :])
        a += tl.dot(a.to(tl.float16), b.to(tl.float16)).to(a.dtype)
    tl.store(p + tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :], a)
class Model(torch.nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
    def forward(self, x, weight):
        tuned[(1,)](x, x.shape[0])
        greedy[(1,)](x)
"""


def body(text, operator="rms_norm", shapes=("0",), target="sm_90a", **more):
    source = HEAD + "\n".join("        " + line for line in text.strip().splitlines()) + "\n"
    return {"source": source, "dsl": "triton", "target": target, "operator": operator, "shapes": list(shapes),
            "files": {"other.py": OTHER}} | more  # fmt: skip


CANDIDATES = {
    "launches": body("fill[(1,)](operands[0], N=32)\nfill[(1,)](operands[0], N=64)\n"
                     "helper_kernel[(1,)](operands[0], N=8)\nreturn operands[0]", shapes=("0", "1"),
                     owners=["fill", "helper_kernel", "count"]),
    "amd": body("fill[(1,)](operands[0], N=32)", target="gfx942"),
    "views": body("flat = operands[0].view(-1)\nfor start in (0, 1, 8):\n    fill[(1,)](flat[start:], N=4096)"),
    "moved": body("assert self.weight.is_cuda and self.table.is_cuda\n"
                  "fill[(self.table.tolist()[-1],)](self.weight, N=16)"),
    "tuned": {"source": TUNED, "dsl": "triton", "target": "sm_90a"},
    "broken": body("fill[(1,)](operands[0], N=33)"),
    "swallowed": body("try:\n    fill[(1,)](operands[0], N=33)\nexcept Exception:\n    pass\nreturn operands[0] * 2"),
    "wrong": body("fill[(1,)](operands[0].no_such_method(), N=32)"),
    "torch": body("return operands[0] * 2"),
    "missing": body("import no_such_package"),
    "reads_integers": body(
        "lens = operands[4]\nlongest = lens.max().item()\nassert longest == max(lens.tolist()) and longest > 0\n"
        "long = lens[lens > longest // 2]\ncount[(long.shape[0],)](operands[0], longest)\n"
        "count[(1,)](operands[0], int(lens.unique().numel()))", "paged_attention_decode"),
    "reads_floats": body("count[(1,)](operands[0], int(operands[0].sum().item()))"),
    "reads_results": body("sizes = torch.zeros(4, dtype=torch.int32, device='cuda')\nassert sizes.sum().item() == 0\n"
                          "count[(1,)](sizes, 3)\ncount[(sizes[0].item(),)](operands[0], 1)"),
    "figures": body("units = torch.cuda.get_device_properties(operands[0].device).multi_processor_count\n"
                    "assert (units, torch.cuda.get_device_capability()) == (78, (9, 0))\n"
                    "with torch.cuda.stream(torch.cuda.Stream()):\n    count[(units,)](operands[0], units)\n"
                    "torch.cuda.synchronize()", target="H20"),
    "graph": body("fill[(1,)](operands[0], N=32)\ntorch.cuda.CUDAGraph()"),
}  # fmt: skip


@pytest.fixture(scope="module")
def seen():
    return compile_here(CANDIDATES)


def outcome(seen, name, shape="0"):
    found = seen[name]["shapes"][shape]
    return found["status"], found["reason"], found["artifacts"]


def test_every_specialization_of_the_candidate_s_own_kernels_is_an_artifact_of_each_shape(seen):
    for shape in ("0", "1"):
        status, reason, artifacts = outcome(seen, "launches", shape)
        assert (status, reason) == ("compiled", "")
        assert [(a["name"], a["kind"], a["reason"]) for a in artifacts] == [("fill", "cubin", "")] * 2
        assert len({a["sha256"] for a in artifacts}) == 2 and all(a["bytes"] > 1000 for a in artifacts)
    assert seen["launches"]["owners"] == {"fill": "target", "helper_kernel": "dsl", "count": "unknown"}


def test_amd_s_artifacts_are_code_objects(seen):
    status, _, artifacts = outcome(seen, "amd")
    assert status == "compiled" and [a["kind"] for a in artifacts] == ["hsaco"]


def test_a_view_is_as_aligned_as_its_offset_makes_it(seen):
    status, _, artifacts = outcome(seen, "views")
    # The third view starts 16 bytes in, which is aligned enough for the first one's specialization.
    assert status == "compiled" and len(artifacts) == 2


def test_parameters_and_buffers_move_to_the_device_with_their_integers(seen):
    assert outcome(seen, "moved")[0] == "compiled"


def test_an_autotuner_compiles_what_it_would_try_and_may_try_what_does_not_fit(seen):
    status, _, artifacts = outcome(seen, "tuned")
    assert status == "compiled"
    assert sum(a["name"] == "tuned" for a in artifacts) == 3
    fate = {bool(a["reason"]): a["reason"] for a in artifacts if a["name"] == "greedy"}
    assert "out of resource: shared memory" in fate[True] and fate[False] == ""


def test_a_kernel_that_does_not_compile_fails_with_the_compiler_s_reason(seen):
    status, reason, artifacts = outcome(seen, "broken")
    assert status == "failed" and "CompilationError" in reason and "power of 2" in reason
    assert [(a["name"], bool(a["reason"])) for a in artifacts] == [("fill", True)]


def test_a_fallback_does_not_hide_that_the_kernel_did_not_compile(seen):
    status, reason, _ = outcome(seen, "swallowed")
    assert status == "failed" and "power of 2" in reason


def test_launch_code_that_raises_fails(seen):
    status, reason, _ = outcome(seen, "wrong")
    assert status == "failed" and "no_such_method" in reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("torch", "launched no kernel of the target DSL"),
        ("missing", "imports no_such_package, which is not installed here"),
        ("reads_floats", "values that only a device can compute"),
        ("reads_results", "values that only a device can compute"),
        ("graph", "torch.cuda.CUDAGraph needs a device"),
    ],
)
def test_what_cannot_be_told_here_is_undetermined_and_says_why(seen, name, reason):
    status, said, _ = outcome(seen, name)
    assert status == "undetermined" and reason in said


def test_what_was_compiled_before_the_end_is_kept(seen):
    assert [a["name"] for a in outcome(seen, "graph")[2]] == ["fill"]


def test_launch_code_may_read_integer_operands(seen):
    assert outcome(seen, "reads_integers")[:2] == ("compiled", "")


def test_launch_code_is_told_the_figures_of_the_target_s_chip(seen):
    assert outcome(seen, "figures")[:2] == ("compiled", "")
