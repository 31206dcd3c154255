"""What a program in a jail cannot see, reach, take or leave behind; and what honest work it can do there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

import atrex
from atrex.agents.jail import Jail, JailError, Terms
from atrex.evaluate.confine.limits import Limits

PACKAGE = Path(atrex.__file__).resolve().parent
CHECKOUT = PACKAGE.parent.parent


def test_its_workspace_is_its_own_and_all_it_can_write(inside, tmp_path):
    (tmp_path / "jail" / "workspace").mkdir(parents=True)
    (tmp_path / "jail" / "workspace" / "given.txt").write_text("7")
    status, lines, jail = inside(
        "import pathlib\nprint(pathlib.Path('given.txt').read_text())\npathlib.Path('made.txt').write_text('x')\n"
        "for name in ('/tmp/x', '/etc/x', '../x', '/dev/shm/../x'):\n"
        "    try: pathlib.Path(name).write_text('x'); print('wrote', name)\n"
        "    except OSError: pass\n"
    )
    assert (status, lines) == (0, ["7"]) and (jail.workspace / "made.txt").exists()


@pytest.mark.parametrize(
    "path",
    [
        PACKAGE / "suite" / "rms_norm" / "metadata.json",
        PACKAGE / "suite" / "rms_norm" / "roofline.json",
        PACKAGE / "evaluate" / "unit.py",
        PACKAGE / "suite" / "weights.json",
        CHECKOUT / ".git" / "HEAD",
        CHECKOUT / "pyproject.toml",
        Path("/etc/shadow"),
        Path(f"/proc/{os.getpid()}/environ"),
        Path(f"/proc/{os.getpid()}/cmdline"),
    ],
    ids=lambda path: path.name if "proc" not in path.parts else f"proc-{path.name}",
)
def test_it_reads_nothing_of_the_project_or_of_others(inside, path):
    status, lines, _ = inside(f"import pathlib\nprint(len(pathlib.Path({str(path)!r}).read_bytes()))")
    assert status != 0 and any("Error" in line for line in lines)


def test_a_link_out_leads_nowhere(inside, tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("hidden")
    status, lines, _ = inside(f"import os\nos.symlink({str(secret)!r}, 'link')\nprint(open('link').read())")
    assert status != 0 and "hidden" not in lines


def test_what_another_run_left_is_out_of_sight(inside, tmp_path):
    other = tmp_path / "other" / "workspace"
    other.mkdir(parents=True)
    (other / "candidate.py").write_text("theirs")
    status, lines, _ = inside(
        "import os\nfor at in ('../../other/workspace', '../..'):\n"
        "    try: print(os.listdir(at))\n    except OSError as e: print(type(e).__name__)"
    )
    assert len(lines) == 2 and set(lines) <= {"PermissionError", "FileNotFoundError"}  # shut, or emptied as /tmp is


def test_the_package_cannot_be_imported_and_torch_can(inside):
    status, lines, _ = inside(
        "try:\n    import atrex\n    print(atrex.__file__)\nexcept ImportError: print('no atrex')\n"
        "import torch\nprint(int(torch.ones(3).sum()))"
    )
    assert (status, lines) == (0, ["no atrex", "3"])


def test_it_sees_no_process_but_its_own(inside, here):
    status, lines, _ = inside(
        "import os\npids = sorted(int(n) for n in os.listdir('/proc') if n.isdigit())\nprint(len(pids))\n"
        f"try: os.kill({here}, 0); print('found')\nexcept OSError: print('none')"
    )
    assert status == 0 and int(lines[0]) < 5
    assert lines[1] == "none"


def test_no_environment_of_ours_reaches_it(inside, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "sk-of-ours")
    _, lines, _ = inside("import os\nprint(dict(os.environ))", env={"GIVEN": "1"})
    assert "sk-of-ours" not in lines[0] and "'GIVEN': '1'" in lines[0]


def test_honest_builds_work(inside):
    source = r"""
    import os, subprocess, tempfile
    from torch.utils.cpp_extension import load_inline
    path = os.path.join(tempfile.mkdtemp(), "a.cpp")
    open(path, "w").write("int main() { return 3; }")
    subprocess.run(["g++", path, "-o", path + ".out"], check=True)
    print(subprocess.run([path + ".out"]).returncode)
    """
    status, lines, _ = inside(textwrap.dedent(source), seconds=120)
    assert (status, lines) == (0, ["3"])


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_what_it_leaves_behind_is_gone_when_it_ends(inside):
    name = f"left-{os.getpid()}"
    status, _, _ = inside(
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0:\n"
        f"            os.closerange(0, 3)\n            os.execv('/bin/sleep', [{name!r}, '1000'])\n"
        "        os._exit(0)\n"
        "time.sleep(0.3)"
    )
    assert status == 0
    with contextlib.suppress(psutil.Error):
        assert not [p for p in psutil.process_iter(["cmdline"]) if name in (p.info["cmdline"] or [])]


def test_too_many_processes_end_it(inside):
    """From one parent, so that a machine on which this fails survives it."""
    source = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(1000)\n    time.sleep(0.002)"
    status, _, jail = inside(source)
    assert status != 0 and "processes" in jail.excess


def test_memory_is_bounded(inside):
    source = "held = []\nwhile True:\n    held.append(bytearray(b'x') * (32 << 20))"
    status, _, jail = inside(source, limits=Limits(memory=256 << 20, disk=64 << 20))
    assert status != 0 and "memory" in jail.excess


def test_disk_is_bounded(inside):
    source = "import os\nfor i in range(1000):\n    open(f'f{i}', 'wb').write(os.urandom(4 << 20))"
    status, _, jail = inside(source, limits=Limits(memory=1 << 30, disk=32 << 20))
    assert status != 0 and "folder" in jail.excess


def test_a_flood_of_output_comes_in_bounded_pieces(inside):
    _, lines, _ = inside("import sys\nsys.stdout.write('y' * (20 << 20))")
    assert sum(map(len, lines)) == 20 << 20 and max(map(len, lines)) < 10 << 20


def test_the_deadline_ends_a_silent_program(tmp_path):
    with Jail(tmp_path / "jail", Terms()) as jail:
        jail.start(["/bin/sleep", "1000"])
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            list(jail.lines(time.monotonic() + 0.5))
    assert time.monotonic() - began < 10


def test_it_dies_with_its_supervisor(tmp_path):
    source = f"""
    import pathlib, time
    from atrex.agents.jail import Jail, Terms
    jail = Jail(pathlib.Path({str(tmp_path / "jail")!r}), Terms())
    jail.start(["/bin/sh", "-c", "sleep 1000; : {tmp_path}"])
    print("up", flush=True)
    time.sleep(1000)
    """
    supervisor = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE)
    try:
        assert supervisor.stdout.readline() == b"up\n"
        deadline, inside = time.monotonic() + 20, []
        while not inside and time.monotonic() < deadline:
            inside = [p for p in psutil.process_iter() if p.name() == "sh" and str(tmp_path) in " ".join(p.cmdline())]
        assert inside
    finally:
        supervisor.kill()
        supervisor.wait()
    assert psutil.wait_procs(inside, timeout=10)[1] == []


def test_a_program_that_is_not_there_says_so(tmp_path):
    with Jail(tmp_path / "jail", Terms()) as jail:
        jail.start(["/no/such/program"])
        lines = [line for _, line in jail.lines(time.monotonic() + 10)]
        assert jail.wait() == 127 and "/no/such/program" in lines[0]


def test_one_program_at_a_time(tmp_path):
    with Jail(tmp_path / "jail", Terms()) as jail:
        jail.start(["/bin/sleep", "10"])
        with pytest.raises(JailError, match="already"):
            jail.start(["/bin/true"])


def test_nothing_starts_in_a_jail_that_was_shut(tmp_path):
    with Jail(tmp_path / "jail", Terms()) as jail:
        jail.kill()
        with pytest.raises(JailError, match="shut"):
            jail.start(["/bin/sleep", "1000"])
