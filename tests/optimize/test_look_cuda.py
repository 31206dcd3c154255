"""ncu runs in a jail: what it can do there, and what is said where that does not hold. A program stands in for ncu."""

from __future__ import annotations

import subprocess
import sys

import pytest

from atrex.agents.jail import JailError
from atrex.errors import UserError
from atrex.hardware.detect import DeviceInfo
from atrex.hardware.sandbox import CLONE_NEWNET, CLONE_NEWUSER, can_unshare, landlock_abi
from atrex.optimize import look_cuda as looking
from atrex.optimize.look_cuda import CAP_SYS_ADMIN, look_cuda
from atrex.problems.load import load_suite
from atrex.profiling import ncu
from tests.profiling.test_ncu import TABLE

pytestmark = pytest.mark.skipif(
    landlock_abi() is None or can_unshare(CLONE_NEWUSER | CLONE_NEWNET) is not None, reason="needs a jail that holds"
)
LISTENS = """\
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as s, socket.create_connection(s.getsockname()):
    pass
"""


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Looks at a kernel through a program `ncu` that does `body`, and prints TABLE when it imports."""
    monkeypatch.setattr(looking, "describe", lambda device: DeviceInfo("cuda:0", "NVIDIA H200", "H200", "sm_90"))
    (tmp_path / "secret").write_text("of this machine")
    (tmp_path / "kernel.py").write_text("class Model: pass\n")
    problem = load_suite().problem("rms_norm")

    def go(body):
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "table.csv").write_text(TABLE)
        (folder / "listens.py").write_text(LISTENS)
        program = folder / "ncu"
        program.write_text(
            "#!/bin/bash\n"
            f'case "$1" in --version) echo "Version 1.0";; --import) [ -f "$2" ] && cat {folder}/table.csv;; *)\n'
            'for ((i=1; i<=$#; i++)); do [ "${!i}" = --export ] && j=$((i+1)) && out="${!j}"; done\n'
            f"{body}\n;; esac\n"
        )
        program.chmod(0o755)
        monkeypatch.setattr(ncu, "find_ncu", lambda: str(program))
        return look_cuda(tmp_path / "kernel.py", problem, problem.shape("46"), "triton", "cuda:0", 60)

    return go


def test_what_ncu_counts_comes_back_and_nothing_else_of_the_machine_is_reached(look, tmp_path):
    python = sys.executable
    found = look(
        f"cat {tmp_path}/secret && exit 3\ntouch {tmp_path}/left && exit 4\n"
        f"{python} {tmp_path}/bin/listens.py 80 && exit 5\n"
        f"{python} {tmp_path}/bin/listens.py 49152 || exit 6\n"
        '[ -s candidate.py ] && [ -s inputs.pt ] && [ -s order.json ] || exit 7\ntouch "$out"'
    )
    assert found.kernel.name == "gemm_kernel" and found.shape == "46" and found.tool == "ncu"
    assert not (tmp_path / "left").exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('echo "==ERROR== ERR_NVGPUCTRPERM"; exit 1', "may not read performance counters"),
        ("exit 9", "ended with status 9"),
    ],
)
def test_what_ncu_cannot_do_there_is_one_line(look, body, said):
    with pytest.raises(UserError, match=said):
        look(body)


def test_a_jail_that_cannot_be_made_is_one_line_and_nothing_is_run(look, monkeypatch, tmp_path):
    def fails(self, *_):
        raise JailError("the jail did not come up: no namespaces")

    monkeypatch.setattr(looking.Jail, "_agree", fails)
    with pytest.raises(UserError, match="not run under ncu, which it is in a jail only .*no namespaces"):
        look(f"touch {tmp_path}/ran")
    assert not (tmp_path / "ran").exists()


def test_a_jail_that_does_not_hold_is_not_used(look, monkeypatch):
    held = {"unconfined": ["files", "system_calls"], "kept": []}
    agree = looking.Jail._agree

    def less(self, *arguments):
        agree(self, *arguments)
        self.held = held

    monkeypatch.setattr(looking.Jail, "_agree", less)
    with pytest.raises(UserError, match="files, system calls: not confined here"):
        look('touch "$out"')


@pytest.mark.parametrize(("only", "wanted"), [(True, True), (False, False)])
def test_the_capability_for_counters_is_kept_where_the_driver_asks_for_it_alone(look, monkeypatch, only, wanted):
    with open("/proc/self/status") as status:
        effective = next(line.split()[1] for line in status if line.startswith("CapEff"))
    if not int(effective, 16) >> CAP_SYS_ADMIN & 1:
        pytest.skip("needs CAP_SYS_ADMIN to give it on")
    monkeypatch.setattr(looking, "_admin_only", lambda: only)
    bits = f"{1 << CAP_SYS_ADMIN if wanted else 0:016x}"
    assert look(f'grep -q "CapEff:.{bits}" /proc/self/status && ! mount -t tmpfs x /mnt && touch "$out"') is not None


def test_without_ncu_there_is_no_look(monkeypatch, tmp_path):
    def missing():
        raise UserError("ncu is not here")

    monkeypatch.setattr(ncu, "find_ncu", missing)
    problem = load_suite().problem("rms_norm")
    assert look_cuda(tmp_path / "k.py", problem, problem.shape("46"), "triton", "cuda:0", 1) is None


def test_the_program_that_is_profiled_needs_nothing_of_this_package(tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", str(looking._PROGRAM)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "order.json" in done.stderr and "atrex" not in done.stderr.replace(str(looking._PROGRAM), "")
