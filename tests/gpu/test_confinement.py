"""Confined workers on a CUDA device: CUDA, CUPTI, cuBLAS, Triton, nvcc and torch.compile work, and what is refused.

Run with ``python -m pytest -v -m gpu tests/gpu/test_confinement.py``; ``-k starts`` first: it takes the mechanisms
apart, so that the one that keeps CUDA from starting shows.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
import torch

import atrex
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.confine import describe
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.setup import prepare
from atrex.evaluate.spawn import Zygote
from atrex.evaluate.unit import Unit, UnitJudge
from atrex.problems.load import load_suite

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
EXAMPLES = Path(__file__).parents[2] / "examples" / "candidates"
PACKAGE = Path(atrex.__file__).parent
JUDGE = os.getpid()
HONEST = (EXAMPLES / "torch" / "rms_norm.py").read_text()
TOLD = """
import ctypes, glob, os, signal, socket, subprocess, tempfile, torch

def attempt(work, *args):
    try:
        return "done " + str(work(*args))[:60]
    except Exception as error:
        return type(error).__name__

{code}
raise RuntimeError(f"told {{found!r}}")
Model = 1
"""


@pytest.fixture(scope="module")
def setup():
    made = prepare("cuda:0", Seeds(), 1, Budgets(compile=120, execution=5, performance=5), 20)
    print("\n" + describe(made.confinement))
    yield made
    made.close()


@pytest.fixture
def judge(setup, tmp_path):
    suite = load_suite()

    def run(source, operator="rms_norm", shape="36", dsl="triton"):
        path = tmp_path / f"{operator}.py"
        path.write_text(source)
        problem = suite.problem(operator)
        unit = Unit(Candidate(path, str(path), str(path), operator, source), problem, problem.shape(shape), dsl)
        return UnitJudge(setup, unit).run()

    return run


@pytest.fixture
def told(judge):
    def run(code):
        record = judge(TOLD.format(code=code))
        match = re.fullmatch(r"RuntimeError: told (.*)", record.verdict.reason or "")
        assert match, record.verdict
        return eval(match[1])

    return run


# -- each mechanism, taken away -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "without",
    [
        ("landlock", "bubblewrap", "seccomp", "namespaces"),
        ("landlock", "bubblewrap", "namespaces"),
        ("landlock", "bubblewrap", "seccomp"),
        ("seccomp", "namespaces"),
        ("namespaces", "landlock:1"),
        ("namespaces", "landlock:4"),
        ("landlock",),
        (),
    ],
    ids=["nothing", "only seccomp", "only namespaces", "only Landlock", "like Linux 5.13", "like Linux 6.7",
         "bubblewrap", "everything"],
)  # fmt: skip
def test_cuda_starts_and_maps_a_block_of_the_judge_with(without):
    made = prepare("cuda:0", Seeds(), 1, Budgets(), 20, Zygote(without))
    try:
        print("\n" + describe(made.confinement))
        assert made.baseline.round_trip_us > 0
        assert made.collector_fault is None
    finally:
        made.close()


# -- honest work ---------------------------------------------------------------------------------------------------


def test_triton_compiles_and_cupti_sees_its_kernels(judge):
    record = judge((EXAMPLES / "triton" / "rms_norm.py").read_text())
    assert record.verdict.status == "passed", record.verdict
    assert record.adoption.share == 1.0
    assert record.confinement["files"] != "unconfined" and record.confinement["network"] != "unconfined"


def test_cublas_works(judge):
    line = next(line for line in HONEST.splitlines(keepends=True) if "def forward(" in line)
    product = (
        "        torch.randn(512, 512, device=x.device).bfloat16() @ torch.ones(512, 512, device=x.device).bfloat16()\n"
    )
    source = HONEST.replace(line, line + product)
    assert product in source
    record = judge(source)
    assert record.verdict.status == "passed", record.verdict
    assert any(kernel.owner == "vendor" for kernel in record.adoption.kernels)


def test_torch_compile_works(judge):
    source = HONEST.replace("    def forward", "    @torch.compile\n    def forward")
    record = judge(source)
    assert record.verdict.status == "passed", record.verdict


@pytest.mark.slow
def test_a_cuda_extension_is_built_and_its_build_is_kept_for_the_next_unit(judge):
    source = HONEST + (
        "\nfrom torch.utils.cpp_extension import load_inline\n"
        "load_inline('kept', 'int seven();', 'int seven() { return 7; }', functions=['seven'])\n"
    )
    first, second = judge(source), judge(source)
    assert first.verdict.status == second.verdict.status == "passed", first.verdict
    assert second.phases["load"] < first.phases["load"] / 2


def test_memory_between_the_judge_and_a_worker_that_was_forked_ahead_is_shared(judge):
    for _ in range(3):
        assert judge(HONEST).verdict.status == "passed"


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["metadata.json", "roofline.json", "work.py", "held_out.json", "reference.py"])
def test_files_of_the_evaluator_cannot_be_read(told, name):
    path = PACKAGE / "suite" / "rms_norm" / name
    assert path.exists()
    assert told(f"found = attempt(open, {str(path)!r})") == "PermissionError"


@pytest.mark.parametrize("name", ["environ", "mem", "maps"])
def test_nothing_secret_of_the_judge_shows_in_proc(told, name):
    code = f"found = [attempt(open, f'/proc/{{pid}}/{name}') for pid in ('self', {JUDGE}, os.getppid())]"
    own, *others = told(code)
    assert own.startswith("done") and others == ["PermissionError"] * 2


@pytest.mark.parametrize("whom", [str(JUDGE), "os.getppid()"], ids=["judge", "zygote"])
def test_it_signals_neither_the_judge_nor_the_zygote(told, whom):
    assert told(f"found = attempt(os.kill, {whom}, signal.SIGCONT)") == "PermissionError"


def test_no_network(told):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        found = told(
            f"found = [attempt(socket.create_connection, {address!r}, 2),"
            " attempt(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))),"
            " attempt(socket.getaddrinfo, 'example.org', 80)]"
        )
    assert all(not answer.startswith("done") for answer in found)


def test_no_abstract_socket_of_another_program(told, setup):
    if "unix_sockets" in setup.confinement["unconfined"]:
        pytest.skip("neither network namespaces nor Landlock 6 here: docs/trust.md says so")
    name = f"\0atrex-gpu-{JUDGE}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        assert not told(f"found = attempt(socket.socket(socket.AF_UNIX).connect, {name!r})").startswith("done")


def test_no_capability_is_left(told):
    code = "status = open('/proc/self/status').read()\n"
    code += "found = {line.split()[1] for line in status.splitlines() if line.startswith('Cap')}"
    assert told(code) == {"0000000000000000"}
