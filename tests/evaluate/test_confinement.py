"""What a hostile candidate tries from inside a worker of the real judge: each attempt is refused or bounded."""

from __future__ import annotations

import os
import re
import socket
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import atrex
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.confine import describe
from atrex.evaluate.rundir import RunDirectory
from atrex.evaluate.seeds import Seeds
from atrex.scoring.records import Status
from tests.evaluate.conftest import HONEST

pytestmark = pytest.mark.alone

PACKAGE = Path(atrex.__file__).parent
CHECKOUT = PACKAGE.parents[1]
JUDGE = os.getpid()
REFUSED = [("PermissionError",), ("FileNotFoundError",)]  # /tmp may be an empty one of the workers' own

TOLD = """
import ctypes, errno, glob, os, signal, socket, struct, subprocess, sys, tempfile, time

def attempt(work, *args):
    try:
        return ("done", str(work(*args))[:60])
    except Exception as error:
        return (type(error).__name__,)

{code}
raise RuntimeError(f"told {{found!r}}")
Model = 1
"""


@pytest.fixture(autouse=True)
def everything_holds(setup):
    held = setup.confinement
    if held["unconfined"] or not held["files"].startswith("Landlock"):
        pytest.skip(f"this kernel and user do not offer it all: {describe(held)}")


@pytest.fixture
def told(judge):
    """told(code) -> what the code, run as the import of a candidate, leaves in `found`."""

    def run(code):
        record = judge(TOLD.format(code=code))
        match = re.fullmatch(r"RuntimeError: told (.*)", record.verdict.reason or "")
        assert match, record.verdict
        return eval(match[1])

    return run


@contextmanager
def limited(setup, **limits):
    zygote = setup.zygote
    before, zygote.limits = zygote.limits, replace(zygote.limits, **limits)
    try:
        yield
    finally:
        zygote.limits = before


def gone(pid, seconds=5.0):
    deadline = time.monotonic() + seconds
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not psutil.pid_exists(pid)


def passes(judge):
    return judge(HONEST).verdict.status is Status.PASSED


# -- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        *(PACKAGE / "suite" / "rms_norm" / name for name in (
            "metadata.json", "roofline.json", "work.py", "held_out.json", "reference.py", "input.py")),
        PACKAGE / "suite" / "weights.json",
        CHECKOUT / "pyproject.toml",
        Path(__file__),
        Path("/etc/shadow"),
    ],
    ids=lambda path: path.name,
)  # fmt: skip
def test_files_of_the_evaluator_cannot_be_read(told, path):
    assert path.read_bytes(), "the judge itself can"
    assert told(f"found = attempt(lambda: open({str(path)!r}).read())") == ("PermissionError",)


def test_interpreter_and_packages_can_be_read(told):
    assert told("import torch\nfound = attempt(lambda: open(torch.__file__).read(9))")[0] == "done"


@pytest.mark.parametrize("name", ["seeds.secret", "run.json", "units.jsonl"])
def test_a_run_directory_cannot_be_read(told, tmp_path, name):
    run = RunDirectory.create(tmp_path / "run", {}, Seeds(b"s"))
    path = str(run.path / name)
    assert told(f"found = attempt(open, {path!r})") in REFUSED


def test_results_and_runs_cannot_be_listed(told, tmp_path):
    (tmp_path / "runs").mkdir()
    assert told(f"found = attempt(os.listdir, {str(tmp_path / 'runs')!r})") in REFUSED


def test_nothing_can_be_written_outside_its_own_folders(told, tmp_path):
    places = [str(tmp_path / "new"), "/usr/new", "/new", str(PACKAGE / "evaluate" / "new.py")]
    assert "done" not in told(f"found = [attempt(open, place, 'w')[0] for place in {places!r}]")
    assert not any(map(os.path.exists, places))


def test_modes_of_files_outside_do_not_change(told):
    path = PACKAGE / "__init__.py"
    before = path.stat().st_mode
    told(f"found = [attempt(os.chmod, {str(path)!r}, 0o777), attempt(os.chmod, '/etc/passwd', 0o666)]")
    assert path.stat().st_mode == before and Path("/etc/passwd").stat().st_mode & 0o777 == 0o644


def test_a_folder_that_a_candidate_locks_does_not_stop_the_next_unit(told, judge):
    told("found = [attempt(os.chmod, path, 0) for path in (os.path.dirname(os.getcwd()), os.environ['TMPDIR'])]")
    told("found = attempt(os.chmod, os.path.dirname(__file__) + '/cache', 0)")
    assert passes(judge)


def test_another_candidates_home_cannot_be_read(judge, told):
    mine = "found = os.path.dirname(os.path.abspath(sys.modules['candidate'].__file__))"
    home = told(mine)
    assert any(Path(home).iterdir()), "it is still there"
    assert told(f"found = attempt(os.listdir, {home!r})") == ("PermissionError",)


def test_a_candidate_finds_its_own_cache_again(told):
    code = (
        "cache = os.environ['TRITON_CACHE_DIR']\nfound = os.path.exists(cache + '/kept')\nopen(cache + '/kept', 'w')\n"
    )
    assert [told(code), told(code)] == [False, True]


def test_a_rewritten_source_is_the_judges_again_in_the_next_unit(told):
    code = "found = open(__file__).read().count('rewritten')\nopen(__file__, 'w').write('rewritten ' * 99)"
    assert told(code) == told(code) == 2


def test_a_link_in_the_place_of_its_cache_leads_the_judge_nowhere(told, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    code = (
        f"home = os.path.dirname(__file__)\nfound = os.path.islink(home + '/cache')\n"
        f"os.rename(home + '/cache', home + '/old')\nos.symlink({str(outside)!r}, home + '/cache')\n"
    )
    assert told(code) is told(code) is False
    assert list(outside.iterdir()) == []


# -- the judge's process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["environ", "mem", "maps", "fd/0", "root", "cwd", "exe"])
def test_nothing_secret_of_the_judge_shows_in_proc(told, name):
    look = "os.readlink" if name in ("fd/0", "root", "cwd", "exe") else "open"
    code = f"found = [attempt({look}, f'/proc/{{pid}}/{name}') for pid in ('self', {JUDGE}, os.getppid())]"
    own, *others = told(code)
    assert own[0] == "done"
    assert others == [("PermissionError",)] * 2


def test_the_judges_memory_cannot_be_read_by_system_call(told):
    code = (
        "libc = ctypes.CDLL(None, use_errno=True)\nbuffer = ctypes.create_string_buffer(8)\n"
        "vector = struct.pack('PN', ctypes.addressof(buffer), 8)\n"
        f"result = libc.process_vm_readv({JUDGE}, vector, 1, vector, 1, 0)\n"
        "found = result, errno.errorcode[ctypes.get_errno()]"
    )
    assert told(code) == (-1, "EPERM")


@pytest.mark.parametrize("whom", [str(JUDGE), "os.getppid()"], ids=["judge", "zygote"])
def test_it_traces_neither_the_judge_nor_the_zygote(told, whom):
    code = "libc = ctypes.CDLL(None, use_errno=True)\n"
    code += f"found = libc.ptrace(0x4206, {whom}, None, None), errno.errorcode[ctypes.get_errno()]"  # PTRACE_SEIZE
    assert told(code) == (-1, "EPERM")


@pytest.mark.parametrize("whom", [str(JUDGE), "os.getppid()", f"-{os.getpgid(0)}"], ids=["judge", "zygote", "group"])
def test_it_signals_neither_the_judge_nor_the_zygote(told, whom):
    assert told(f"found = attempt(os.kill, {whom}, signal.SIGCONT)") == ("PermissionError",)


def test_limits_priority_and_cores_of_the_judge_stay_as_they_are(told):
    code = (
        f"import resource\nfound = [attempt(resource.prlimit, {JUDGE}, resource.RLIMIT_CORE, (0, 0)),"
        f" attempt(os.setpriority, os.PRIO_PROCESS, {JUDGE}, 19), attempt(os.sched_setaffinity, {JUDGE}, [0]),"
        f" attempt(os.sched_setscheduler, {JUDGE}, os.SCHED_BATCH, os.sched_param(0))]"
    )
    assert told(code) == [("PermissionError",)] * 4


def test_it_signals_its_own_children(told):
    code = "child = subprocess.Popen(['sleep', '60'])\nchild.kill()\nfound = child.wait(5)"
    assert told(code) == -9


def test_it_inherits_no_descriptor_but_its_output_and_the_channel(told):
    code = "links = [attempt(os.readlink, f'/proc/self/fd/{n}') for n in range(200)]\n"
    code += "found = [link[1] for link in links if len(link) == 2]"
    links = told(code)
    assert [name.split(":")[0] for name in links[:4]] == ["/dev/null", "pipe", "pipe", "socket"]
    assert all("/suite/" not in name and "socket" not in name for name in links[4:])


# -- privileges ----------------------------------------------------------------------------------------------------


def test_no_capability_is_left_and_none_comes_back_with_a_program(told):
    code = "status = subprocess.run(['cat', '/proc/self/status'], capture_output=True, text=True).stdout\n"
    code += "found = {line.split()[1] for line in status.splitlines() if line.startswith('Cap')}"
    assert told(code) == {"0000000000000000"}


@pytest.mark.parametrize(
    ("call", "arguments"),
    [("unshare", "0x10000000"), ("mount", "b'none', b'/tmp', b'tmpfs', 0, None"), ("chroot", "b'/tmp'"),
     ("setns", "0, 0"), ("syscall", "425, 8, None"), ("shmget", "0, 4096, 0o1600")],
    ids=["unshare", "mount", "chroot", "setns", "io_uring_setup", "shmget"],
)  # fmt: skip
def test_system_calls_that_no_kernel_needs_are_refused(told, call, arguments):
    code = "libc = ctypes.CDLL(None, use_errno=True)\n"
    code += f"found = libc.{call}({arguments}), errno.errorcode[ctypes.get_errno()]"
    assert told(code) == (-1, "EPERM")


# -- network -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_no_tcp_connection_to_this_machine(told, family):
    host = "127.0.0.1" if family == "AF_INET" else "::1"
    with socket.create_server((host, 0), family=getattr(socket, family)) as server:
        address = server.getsockname()[:2]
        with socket.create_connection(address, 2):
            pass  # the judge itself can
        refused = told(f"found = attempt(lambda: socket.create_connection({address!r}, 2))")
    assert refused in [("PermissionError",), ("OSError",)]


@pytest.mark.parametrize(
    "make",
    [
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    ],
    ids=["udp", "raw", "packet", "netlink"],
)
def test_no_other_socket(told, make):
    assert told(f"found = attempt(lambda: {make})")[0] in ("PermissionError", "OSError")


def test_no_name_is_resolved(told):
    assert told("found = attempt(socket.getaddrinfo, 'example.org', 80)") == ("gaierror",)


@pytest.mark.parametrize("abstract", [True, False], ids=["abstract", "by path"])
def test_no_unix_socket_of_another_program(told, tmp_path, abstract):
    address = f"\0atrex-test-{JUDGE}" if abstract else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen()
        connect = f"socket.socket(socket.AF_UNIX).connect({address!r})"
        assert told(f"found = attempt(lambda: {connect})") == ("PermissionError",)


def test_a_pair_of_sockets_between_its_own_processes_works(told):
    assert told("a, b = socket.socketpair()\na.send(b'x')\nfound = b.recv(1)") == b"x"


# -- what is left behind -------------------------------------------------------------------------------------------

DOUBLE_FORK = """
ends = os.pipe()
if os.fork() == 0:
    os.setsid()
    {before}
    if os.fork() == 0:
        os.write(ends[1], str(os.getpid()).encode())
        time.sleep(600)
    os._exit(0)
found = int(os.read(ends[0], 20))
"""


def test_a_process_left_behind_in_a_session_of_its_own_dies_with_its_unit(told, judge):
    assert gone(told(DOUBLE_FORK.format(before="pass")))
    assert passes(judge)


def test_a_process_that_was_led_out_of_the_tree_dies_at_once(told):
    no_subreaper = "ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)\n"
    assert gone(told(no_subreaper + DOUBLE_FORK.format(before="pass") + "os.wait()\ntime.sleep(0.5)"))


def test_processes_are_counted(judge, setup):
    forks = "import os, time\nfor _ in range(60):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(30)\nModel = 1"
    with limited(setup, processes=30):
        record = judge(forks)
    assert record.verdict.status is Status.FAILED and "processes" in record.verdict.reason
    assert passes(judge)


def test_processes_that_fork_faster_than_they_are_killed_end_with_their_unit(judge, setup):
    bomb = "import os, time\nfor _ in range(8): os.fork()\ntime.sleep(60)\nModel = 1"
    with limited(setup, processes=20):
        record = judge(bomb)
    zygote = psutil.Process(setup.zygote._process.pid)
    assert record.verdict.status is Status.FAILED and "processes" in record.verdict.reason
    deadline = time.monotonic() + 5
    while zygote.children(recursive=True) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert zygote.children(recursive=True) == []


# -- bounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fill",
    [
        "if os.fork() == 0: kept = b'x' * (800 << 20); time.sleep(60)",
        "fd = os.memfd_create('m')\nfor _ in range(800): os.write(fd, b'x' * (1 << 20))",
        "fd = os.open('/dev/shm/m', os.O_CREAT | os.O_RDWR)\nfor _ in range(800): os.write(fd, b'x' * (1 << 20))",
    ],
    ids=["of a child", "in an unmapped file", "in /dev/shm"],
)
def test_memory_is_bounded_whoever_holds_it(judge, setup, fill):
    with limited(setup, memory=700 << 20):
        record = judge(f"import os, time\n{fill}\ntime.sleep(60)\nModel = 1")
    assert record.verdict.category == "timeout_or_oom" and "MiB of memory" in record.verdict.reason, record.verdict
    assert not os.path.exists("/dev/shm/m")


@pytest.mark.parametrize("unlink", [False, True], ids=["named", "unlinked"])
def test_disk_is_bounded(judge, setup, unlink):
    fill = (
        "import os, tempfile, time\nkept = []\nfor n in range(30):\n"
        "    kept.append(open(os.path.join(tempfile.gettempdir(), str(n)), 'wb'))\n"
        "    kept[-1].write(bytes(10 << 20))\n"
        f"    if {unlink}: os.unlink(kept[-1].name)\n"
        "time.sleep(60)\nModel = 1"
    )
    with limited(setup, disk=150 << 20):
        record = judge(fill)
    assert record.verdict.status is Status.FAILED and "150 MiB" in record.verdict.reason, record.verdict


def test_the_number_of_files_is_bounded(judge, setup):
    fill = "import tempfile, time\nfolder = tempfile.mkdtemp()\n"
    fill += "for n in range(1500): open(f'{folder}/{n}', 'w')\ntime.sleep(60)\nModel = 1"
    with limited(setup, files=1000):
        record = judge(fill)
    assert record.verdict.status is Status.FAILED and "1000 files" in record.verdict.reason, record.verdict


def test_where_memory_runs_out_the_kernel_takes_the_worker_first(told):
    assert told("found = open('/proc/self/oom_score_adj').read().strip()") == "1000"


def test_one_file_is_bounded_at_once(told, setup):
    with limited(setup, disk=1 << 20):
        assert told("found = attempt(lambda: open('big', 'wb').write(bytes(2 << 20)))")[0] == "OSError"


def test_output_is_bounded_and_its_reader_is_not_kept_busy(judge, setup):
    flood = "import os, time\nstop = time.monotonic() + 2\n"
    flood += "while time.monotonic() < stop: os.write(1, b'x' * (1 << 16))\nModel = 1"
    before = psutil.Process().cpu_times()
    with limited(setup, output=1 << 20):
        record = judge(flood)
    after = psutil.Process().cpu_times()
    assert record.verdict.category == "not_a_module" and len(record.log) <= 2000
    assert after.user + after.system - before.user - before.system < 1.0


# -- honest work, confined -----------------------------------------------------------------------------------------


def test_a_compiler_can_be_called(told):
    code = (
        "folder = tempfile.mkdtemp()\nopen(folder + '/a.cpp', 'w').write('extern \"C\" int seven() { return 7; }')\n"
        "subprocess.run(['g++', '-shared', '-fPIC', '-o', folder + '/a.so', folder + '/a.cpp'], check=True)\n"
        "found = ctypes.CDLL(folder + '/a.so').seven()"
    )
    assert told(code) == 7


def test_triton_compiles_for_a_gpu_that_is_not_here(told):
    pytest.importorskip("triton")
    code = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
@triton.jit
def add(p, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(p + i, tl.load(p + i) + 1)
source = triton.compiler.ASTSource(fn=add, signature={"p": "*fp32", "n": "constexpr"}, constexprs={(1,): 64})
found = len(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"])
"""
    assert told(code) > 1000


def test_processes_can_share_work(told):
    code = "from multiprocessing import get_context\n"
    code += "with get_context('fork').Pool(2) as pool: found = pool.map(abs, [-1, -2])"
    assert told(code) == [1, 2]


@pytest.fixture
def patient(setup, monkeypatch):
    monkeypatch.setattr(setup, "budgets", Budgets(compile=250, execution=60, performance=30))


@pytest.mark.slow
def test_torch_compile_works(judge, patient):
    record = judge(HONEST.replace("    def forward", "    @torch.compile\n    def forward"))
    assert record.verdict.status is Status.PASSED, record.verdict


@pytest.mark.slow
def test_the_processes_that_compile_for_torch_work(told, patient):
    code = (
        "from torch._inductor.compile_worker.subproc_pool import SubprocPool\npool = SubprocPool(2)\n"
        "found = pool.submit(os.getpid).result(100) != os.getpid()\npool.shutdown()"
    )
    assert told(code) is True


@pytest.mark.slow
def test_an_extension_is_built_and_its_build_is_kept_for_the_next_unit(judge, patient):
    build = "from torch.utils.cpp_extension import load_inline\n"
    build += "load_inline('kept', 'int seven() { return 7; }', functions=['seven'])\n"
    first, second = judge(HONEST + build), judge(HONEST + build)
    assert first.verdict.status is second.verdict.status is Status.PASSED, first.verdict
    assert second.phases["load"] < first.phases["load"] / 4


# -- the record ----------------------------------------------------------------------------------------------------


def test_the_record_says_what_holds_and_the_candidate_cannot_say_otherwise(judge):
    lie = "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == 'Bench': o.held = {'files': 'open'}\n"
    held = judge(lie + HONEST).confinement
    assert held["files"].startswith("Landlock") and held["unconfined"] == []
