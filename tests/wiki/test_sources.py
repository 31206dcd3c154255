"""Upstream projects: what is found in their files, and what is pinned about them."""

import json
import subprocess

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.wiki.sources import store
from atrex.wiki.sources.tree import find_tree, upstreams

pytest.importorskip("tree_sitter", reason="pip install 'atrex[wiki]'")
pytest.importorskip("tree_sitter_cuda", reason="pip install 'atrex[wiki]'")
from atrex.wiki.sources.symbols import symbols_in  # noqa: E402

TRITON = b'''
import triton, triton.language as tl

@triton.autotune(configs=[], key=["n"])
@triton.jit
def scale_rows_kernel(x, out, n, BLOCK: tl.constexpr):
    """Multiply every row by its own scale."""
    pass

@gluon.jit
def tile_kernel(x): pass

class Norm:
    """Row norms, one warp a row."""
    @cute.kernel
    def kernel(self, x): pass
    @cute.jit
    def __call__(self, x): pass

def helper(): return 1
'''
CUDA = b"""
#include <cuda_runtime.h>
namespace deep { namespace er {
/// Transposes a tile through shared memory.
/// Rows are padded by one word.
template <typename T, int N>
__global__ void __launch_bounds__(256)
transpose_tile(const T* __restrict__ in, T* out) { out[0] = in[0]; }

__device__ float twice(float x) { return 2 * x; }
// The operands of a launch.
struct Arguments { int rows; };
}}
"""


def by_name(path, text):
    return {symbol.name: symbol for symbol in symbols_in(path, text)}


def test_python_kernels_are_told_by_their_decorators():
    found = by_name("a/kernels.py", TRITON)
    assert (found["scale_rows_kernel"].kind, found["scale_rows_kernel"].dsl) == ("kernel", "triton")
    assert found["scale_rows_kernel"].doc == "Multiply every row by its own scale."
    assert (found["scale_rows_kernel"].start, found["scale_rows_kernel"].end) == (4, 8)
    assert found["tile_kernel"].dsl == "gluon"
    assert (found["Norm.kernel"].kind, found["Norm.kernel"].dsl) == ("kernel", "cutedsl")
    assert found["Norm.kernel"].doc == "Row norms, one warp a row."
    assert (found["Norm.__call__"].kind, found["helper"].kind, found["helper"].dsl) == ("function", "function", None)


def test_cuda_kernels_have_the_comment_above_them_and_their_lines():
    found = by_name("k.cu", CUDA)
    kernel = found["transpose_tile"]
    assert (kernel.kind, kernel.dsl, kernel.start, kernel.end) == ("kernel", "cuda", 6, 8)
    assert kernel.doc == "Transposes a tile through shared memory. Rows are padded by one word."
    assert found["twice"].kind == "function" and found["Arguments"].kind == "class"
    assert found["Arguments"].doc == "The operands of a launch."


def test_hip_sources_are_hip():
    text = b"#include <hip/hip_runtime.h>\n__global__ void f(int* x) { *x = 1; }\n"
    assert by_name("k.cpp", text)["f"].dsl == "hip"


@pytest.mark.parametrize("text", [b"", b"def (:\n", b"\xff\xfe\x00", b"class A:\n" * 3, b"@jit\n"])
def test_broken_files_are_survived(text):
    assert isinstance(symbols_in("x.py", text), list)
    assert isinstance(symbols_in("x.cu", text), list)


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("ATREX_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "Kernels"
    (root / "csrc").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "norm.py").write_bytes(TRITON)
    (root / "csrc" / "transpose.cu").write_bytes(CUDA)
    (root / "tests" / "test_norm.py").write_text("def test_scale_rows_kernel():\n    pass\n")
    (root / "LICENSE").write_text("MIT License\n\nPermission is hereby granted, free of charge, to any person\n")
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return root


def run(*arguments, status=0):
    result = CliRunner().invoke(app, ["wiki", *arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout


def test_a_local_project_is_indexed_with_commit_and_licence(project):
    about = json.loads(run("add-source", str(project), "--json"))
    head = subprocess.run(["git", "-C", str(project), "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    assert (about["name"], about["commit"], about["licence"]) == ("kernels", head.strip(), "MIT")
    assert about["kernels"] == {"cuda": 1, "cutedsl": 1, "gluon": 1, "triton": 1}
    assert "kernels: 1 cuda" in run("sources")


def test_a_git_address_is_cloned_and_its_kernels_found_at_the_commit(project):
    run("add-source", project.as_uri(), "--name", "mine")
    found = json.loads(run("search", "transpose", "shared", "memory", "--source", "mine", "--json"))
    assert found["places"][0]["name"] == "transpose_tile"
    assert (found["places"][0]["path"], found["places"][0]["start"]) == ("csrc/transpose.cu", 6)
    assert found["source"]["commit"]


def test_a_kernel_comes_before_the_test_of_it(project):
    run("add-source", str(project))
    first, *_ = store.search("kernels", "scale rows", 5)[1]
    assert (first.kind, first.path) == ("kernel", "norm.py")


def test_camel_case_and_other_names_meet(project):
    (project / "more.py").write_text("@triton.jit\ndef RmsNormFwdKernel(x): pass\n")
    run("add-source", str(project))
    assert store.search("kernels", "rmsnorm", 3)[1][0].name == "RmsNormFwdKernel"


def test_one_dsl_can_be_asked_for(project):
    run("add-source", str(project))
    assert len(store.search("kernels", "tile", 9)[1]) > 1
    assert {place.dsl for place in store.search("kernels", "tile", 9, dsl="gluon")[1]} == {"gluon"}


def test_a_question_without_content_is_refused(project):
    run("add-source", str(project))
    with pytest.raises(UserError, match="nothing to search for"):
        store.search("kernels", "the kernel", 5)


def test_changed_files_give_no_address_at_a_commit(project):
    (project / "norm.py").write_bytes(TRITON + b"\nx = 1\n")
    about = json.loads(run("add-source", str(project), "--json"))
    assert about["dirty"] and about["digest"]
    assert all(place.url is None for place in store.search("kernels", "scale rows", 5)[1])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["add-source", "cutlas"], "no recommended project, did you mean cutlass"),
        (["add-source", "file:///nowhere/at/all"], "cannot be cloned"),
        (["search", "x", "--source", "kernel"], "not added"),
        (["search", "x", "--source", "kernels", "--kind", "pattern"], "--source goes with --dsl alone"),
    ],
)
def test_what_cannot_be_done_is_one_line(project, arguments, said):
    with pytest.raises(UserError, match=said):
        run(*arguments)


def test_a_tree_without_sources_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ATREX_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no Python, CUDA, HIP or C\+\+ file"):
        store.add(find_tree(str(tmp_path / "empty"), None, None))


def test_links_out_of_the_tree_are_not_followed(project, tmp_path):
    (tmp_path / "secret.py").write_text("def outside(): pass\n")
    (project / "link.py").symlink_to(tmp_path / "secret.py")
    about = json.loads(run("add-source", str(project), "--json"))
    assert about["files"] == 3


def test_recommended_projects_have_address_and_licence():
    names = {"cutlass", "flydsl", "triton", "aiter", "flashinfer", "flashmla", "deepgemm", "composable_kernel", "quack"}
    assert names | {"tilelang"} <= set(upstreams())
    for about in upstreams().values():
        assert about["url"].startswith("https://") and about["licence"] and about["dsls"] and about["what"]
