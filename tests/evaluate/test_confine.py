"""Each mechanism of the confinement alone, as kernels and users offer them, in a process without a judge."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from atrex.evaluate.confine import grants
from atrex.evaluate.confine.homes import Homes, remove
from atrex.evaluate.confine.landlock import LIST, READ
from atrex.evaluate.run import Request, run
from atrex.evaluate.spawn import Zygote
from atrex.hardware.sandbox import landlock_abi
from tests.evaluate.conftest import HONEST

SCRIPT = """
import ctypes, fcntl, json, os, signal, socket, sys, tempfile
from atrex.evaluate import confine
from atrex.evaluate.confine import namespaces, privileges
from atrex.evaluate.confine.limits import Limits

about = json.load(sys.stdin)
folder = tempfile.mkdtemp()
enclosure = namespaces.enclose(folder, about["roots"], 1 << 20) if about["namespaces"] else namespaces.Enclosure()
uid = privileges.spare_uid(["/dev/null"]) if about["user"] else None
without = frozenset(about["without"])
ground = confine.Ground(os.getpid(), about["judge"], enclosure, uid, tuple(about["roots"]), without=without)
if uid is not None:
    os.chown(folder, uid, uid)
terms = confine.Terms(about["device"], (folder,), Limits(1 << 30, 1 << 30, processes=5), tuple(about["hidden"]))

def attempt(work, *args):
    try:
        return f"done {work(*args)}"[:60]
    except Exception as error:
        return type(error).__name__

outside = os.getpid()
if os.fork() == 0:
    os.chdir("/")
    held = confine.enter(ground, terms)
    found = None
    exec(about["code"])
    print(json.dumps([held, found]), flush=True)
    os._exit(0)
os.wait()
"""
ALONE = {"seccomp": False, "landlock": False, "user": False, "namespaces": False}


def confined(code="", roots=(), hidden=(), device="cpu", **only):
    """(what holds, `found`) of a process with only the named mechanisms, or all; `landlock=3` plays an older kernel."""
    only = ALONE | only if only else dict.fromkeys(ALONE, True)
    left_out = [name for name, wanted in only.items() if not wanted]
    if only["landlock"] and only["landlock"] is not True:
        left_out.append(f"landlock:{only['landlock']}")
    about = {
        "code": code, "judge": os.getpid(), "roots": [str(r) for r in roots], "hidden": [str(h) for h in hidden],
        "device": device, "without": left_out, "user": only["user"], "namespaces": only["namespaces"],
    }  # fmt: skip
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=json.dumps(about), capture_output=True, text=True, check=False
    )
    assert result.stdout, result.stderr
    held, found = json.loads(result.stdout)
    return held, found


needs_landlock = pytest.mark.skipif(not landlock_abi(), reason="needs Landlock")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


# -- files ---------------------------------------------------------------------------------------------------------


@needs_landlock
@pytest.mark.parametrize("abi", range(1, 8))
def test_files_are_refused_with_every_version_of_landlock(tmp_path, abi):
    if abi > landlock_abi():
        pytest.skip(f"this kernel has version {landlock_abi()}")
    (tmp_path / "secret").write_text("x")
    held, found = confined(f"found = attempt(open, {str(tmp_path / 'secret')!r})", landlock=abi)
    assert (held["files"], found) == (f"Landlock {abi}", "PermissionError")


@needs_landlock
def test_files_move_between_folders_even_where_the_first_landlock_refuses_it():
    code = "os.mkdir(folder + '/in')\nopen(folder + '/in/a', 'w').write('x')\n"
    code += "os.replace(folder + '/in/a', folder + '/b')\n"
    code += "found = [os.listdir(folder + '/in'), open(folder + '/b').read()]"
    _, found = confined(code, landlock=1)
    assert found == [[], "x"]


@needs_root
def test_user_0_without_read_only_mounts_changes_no_mode(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "file").chmod(0o644)
    code = (
        f"with open({str(tmp_path / 'file')!r}) as file: found = [os.chmod(file.name, 0), os.fchmod(file.fileno(), 0)]"
    )
    held, _ = confined(code, seccomp=True)
    assert held["file_modes"] == "no change" and (tmp_path / "file").stat().st_mode & 0o777 == 0o644


@needs_landlock
def test_what_is_hidden_below_a_readable_folder_is_refused_and_what_is_beside_it_is_not(tmp_path):
    (tmp_path / "in" / "secret").mkdir(parents=True)
    for name in ("in/open", "in/secret/file"):
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "in" / "secret")
    names = ["in/open", "in/secret/file", "link/file"]
    code = f"found = [attempt(lambda: open({str(tmp_path)!r} + '/' + name).read()) for name in {names!r}]"
    _, found = confined(code, roots=[tmp_path], hidden=[tmp_path / "in" / "secret"], landlock=True)
    assert found == ["done x", "PermissionError", "PermissionError"]


def test_a_root_below_something_hidden_is_granted(tmp_path):
    inner = tmp_path / "checkout" / "venv"
    inner.mkdir(parents=True)
    granted = dict(grants.rules([str(tmp_path), str(inner)], [str(tmp_path / "checkout")]))
    assert granted == {str(tmp_path): LIST, str(inner): READ}


def test_no_root_contains_the_suite_once_its_holes_are_cut():
    suite = grants.PACKAGE / "suite" / "rms_norm" / "metadata.json"
    granted = [path for path, access in grants.rules(grants.read_roots(), grants.holes()) if access == READ]
    assert [path for path in granted if suite.is_relative_to(path)] == []
    assert any((grants.PACKAGE / "evaluate" / "worker.py").is_relative_to(path) for path in granted)


def test_without_any_file_mechanism_the_record_is_loud():
    held, _ = confined(seccomp=True)
    assert held["files"] == "unconfined" and "files" in held["unconfined"]


@pytest.mark.slow
def test_a_run_without_any_file_mechanism_warns_once_and_says_so_in_every_record(tmp_path, capfd):
    (tmp_path / "rms_norm.py").write_text(HONEST)
    request = Request([str(tmp_path / "rms_norm.py")], shapes="41,46", device="cpu", quick=True)
    outcome = run(request, zygote=Zygote(["landlock", "bubblewrap"]))
    assert capfd.readouterr().err.count("UNCONFINED here (files)") == 1
    assert {tuple(record.confinement["unconfined"]) for record in outcome.records} == {("files",)}
    assert outcome.about["confinement"]["files"] == "unconfined"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_without_landlock_bubblewrap_shows_neither_the_suite_nor_the_zygotes_memory(tmp_path):
    source = f"""
import os
found = []
for path in ({str(grants.PACKAGE / "suite" / "weights.json")!r}, {__file__!r}, f"/proc/{{os.getppid()}}/mem"):
    try:
        open(path)
        found.append("open")
    except OSError as error:
        found.append("refused")
raise RuntimeError(found)
"""
    zygote = Zygote(["landlock"])
    try:
        worker = zygote.spawn({"device": "cpu", "threads": 1})
        worker.start()
        if worker.held["files"] == "unconfined":
            pytest.skip("bubblewrap does not work here")
        source, cache = worker.place("key", "candidate.py", source)
        order = {"op": "load", "source": str(source), "cache": str(cache), "dsl": "cpp", "init_kwargs": {}}
        answer = worker.ask(order, 60)
        worker.close()
    finally:
        zygote.close()
    assert worker.held["files"] == "bubblewrap" and answer["message"] == str(["refused"] * 3)


# -- users and signals ---------------------------------------------------------------------------------------------


@needs_root
def test_another_user_holds_without_landlock(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    held, found = confined(
        f"found = [attempt(open, {str(tmp_path / 'secret')!r}), attempt(os.kill, outside, 0), "
        "attempt(open, f'/proc/{outside}/environ')]",
        user=True,
    )
    assert held["own_user"] and held["uid"] != 0 and held["signals"] == "another user"
    assert found == ["PermissionError"] * 3


@needs_root
def test_the_kernel_itself_counts_the_processes_of_another_user():
    code = """
children = []
try:
    for _ in range(60):
        children.append(os.fork())
        if children[-1] == 0:
            signal.pause()
except BlockingIOError:
    found = len(children)
for child in children:
    os.kill(child, signal.SIGKILL)
"""
    _, found = confined(code, user=True)
    assert found and found < 20


@needs_root
def test_user_0_without_capabilities_reads_nothing_of_a_process_that_has_them():
    code = "found = [attempt(open, f'/proc/{outside}/{name}') for name in ('environ', 'mem', 'maps')]"
    held, found = confined(code, seccomp=True)
    assert held["uid"] == 0 and found == ["PermissionError"] * 3


@needs_landlock
def test_where_landlock_knows_no_signals_a_process_can_only_signal_itself():
    code = (
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "found = [attempt(os.kill, pid, signal.SIGUSR1) for pid in (os.getpid(), outside)]\n"
        "found.append(attempt(fcntl.fcntl, 0, fcntl.F_SETOWN, outside))"
    )
    held, found = confined(code, seccomp=True, landlock=5)
    assert held["signals"] == "only to itself" and found == ["done None", "PermissionError", "PermissionError"]


# -- network -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["seccomp", "landlock", "namespaces"])
def test_each_mechanism_alone_refuses_tcp(mechanism):
    if mechanism == "landlock" and (landlock_abi() or 0) < 4:
        pytest.skip("needs Landlock 4")
    with socket.create_server(("127.0.0.1", 0)) as server:
        held, found = confined(
            f"found = attempt(socket.create_connection, {server.getsockname()!r}, 2)", **{mechanism: True}
        )
    if mechanism == "namespaces" and held["network"] == "unconfined":
        pytest.skip("no network namespaces here")
    assert found in ("PermissionError", "OSError")


def test_tcp_alone_does_not_count_as_a_confined_network():
    held, _ = confined(landlock=True)
    assert held["network"] == "unconfined"


def test_on_cuda_an_abstract_socket_of_another_program_is_refused_and_its_own_are_not():
    name = f"\0atrex-confine-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        own = f"{name}-own"
        code = (
            f"mine = socket.socket(socket.AF_UNIX)\nmine.bind({own!r})\nmine.listen()\n"
            f"found = [attempt(lambda: socket.socket(socket.AF_UNIX).connect(n)) for n in ({name!r}, {own!r})]"
        )
        held, found = confined(code, device="cuda")
    if "unix_sockets" in held["unconfined"]:
        pytest.skip("neither network namespaces nor Landlock 6 here")
    assert found[0] in ("PermissionError", "ConnectionRefusedError") and found[1] == "done None"


# -- folders -------------------------------------------------------------------------------------------------------


@pytest.fixture
def homes():
    made = Homes()
    yield made
    made.close()


def test_a_candidates_second_worker_finds_the_cache_at_the_same_path(homes):
    first = homes.new(None)
    _, cache = homes.place(first, "c", "a.py", "1", False)
    (cache / "built").write_text("x")
    homes.release(first)
    assert homes.place(homes.new(None), "c", "a.py", "1", False)[1] == cache
    assert (cache / "built").read_text() == "x"


def test_two_living_workers_of_one_candidate_do_not_take_each_others_cache(homes):
    _, first = homes.place(homes.new(None), "c", "a.py", "1", False)
    _, second = homes.place(homes.new(None), "c", "a.py", "1", False)
    assert first != second and first.is_dir() and second.is_dir()


def test_workers_that_could_read_other_candidates_find_none(homes):
    first = homes.new(None)
    source, _ = homes.place(first, "first", "a.py", "1", True)
    homes.release(first)
    homes.place(homes.new(None), "second", "a.py", "1", True)
    assert not source.exists()


def test_a_tree_deeper_than_any_path_is_removed(tmp_path):
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    tree = base / f"atrex-deep-{os.getpid()}"
    tree.mkdir()
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tree)
        for _ in range(3000):
            os.mkdir("d")
            os.chdir("d")
        os.mkdir("locked", 0)
    finally:
        os.fchdir(here)
        os.close(here)
    remove(tree)
    assert not tree.exists()


def test_removing_a_tree_follows_no_link(tmp_path):
    kept = tmp_path / "kept" / "file"
    kept.parent.mkdir()
    kept.write_text("x")
    (tmp_path / "tree" / "in").mkdir(parents=True)
    (tmp_path / "tree" / "link").symlink_to(kept.parent)
    (tmp_path / "tree" / "in" / "link").symlink_to(kept.parent)
    remove(tmp_path / "tree")
    assert kept.read_text() == "x" and not (tmp_path / "tree").exists()
