"""Reading ncu, and running it: a program of that name that answers as ncu does stands in for it."""

import os
import stat
import textwrap

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.hardware import detect
from atrex.hardware.detect import DeviceInfo
from atrex.profiling import collect, ncu
from atrex.profiling.evidence import read_evidence
from atrex.roofline.work import Work

HEADER = (
    '"ID","Process ID","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
    '"gpu__time_duration.sum","dram__bytes_read.sum"'
)
TABLE = textwrap.dedent(f'''\
    ==PROF== Connected to process 42 (/usr/bin/python3)
    {HEADER}
    "","","","","","","","","","nsecond","byte"
    "0","42","fill_kernel(float *)","1","7","(128, 1, 1)","(8, 1, 1)","0","9.0","2,304","4,096"
    "1","42","gemm_kernel","1","7","(256, 1, 1)","(64, 2, 1)","0","9.0","9,000.5","n/a"
    "2","42","gemm_kernel","1","7","(256, 1, 1)","(64, 2, 1)","0","9.0","8,000","1e3"
''')  # fmt: skip


def test_a_table_is_read_with_its_units_line_and_thousands():
    first, second, _ = ncu.read_csv(TABLE)
    assert (first.name, first.grid, first.us) == ("fill_kernel(float *)", "(8, 1, 1)", 2.304)
    assert first.counters["dram__bytes_read.sum"] == 4096
    assert second.counters == {"gpu__time_duration.sum": 9000.5}


def test_output_without_a_table_is_an_error():
    with pytest.raises(UserError, match="printed no table"):
        ncu.read_csv("==ERROR== nothing\n")


def test_the_longest_kernel_is_chosen_else_the_one_asked_for():
    launches = ncu.read_csv(TABLE)
    assert collect.choose(launches, None, None) == 1
    assert collect.choose(launches, "gemm", 1) == 2
    assert collect.choose(launches, "^fill", None) == 0
    with pytest.raises(UserError, match="no such kernel among fill_kernel"):
        collect.choose(launches, "softmax", None)
    with pytest.raises(UserError, match="launches 2 kernels of that name"):
        collect.choose(launches, "gemm", 2)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A program `ncu`: behaves as `body` says when it profiles, prints TABLE when it imports."""

    def install(body):
        (tmp_path / "table.csv").write_text(TABLE)
        path = tmp_path / "ncu"
        path.write_text(
            "#!/bin/bash\n"
            f'echo "$@" >> {tmp_path}/calls\n'
            f'case "$1" in --version) echo "Version 2025.3.1.0 (build 1)";; --import) cat {tmp_path}/table.csv;; *)\n'
            'for ((i=1; i<=$#; i++)); do [ "${!i}" = --export ] && j=$((i+1)) && out="${!j}"; done\n'
            f"{body}\n;; esac\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return tmp_path

    return install


def test_profiling_leaves_clocks_alone_and_sees_the_bracket_only(fake):
    folder = fake('touch "$out"')
    launches, missing = ncu.profile(["true"], folder / "r.ncu-rep")
    call = (folder / "calls").read_text().splitlines()[0]
    assert "--clock-control none" in call and "--profile-from-start off" in call and "--cache-control all" in call
    assert len(launches) == 3 and "dram__bytes_write.sum" in missing and "dram__bytes_read.sum" not in missing
    assert ncu.version(ncu.find_ncu()) == "2025.3.1.0"


def test_a_metric_that_this_ncu_lacks_is_left_out_and_named(fake):
    folder = fake(
        'case "$*" in *gmma*) echo "==ERROR== Failed to find metric '
        'smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio"; exit 9;; *) touch "$out";; esac'
    )
    launches, missing = ncu.profile(["true"], folder / "r.ncu-rep")
    assert launches and "smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio" in missing


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1', "may not read performance"),
        (
            'echo "==ERROR== The application returned an error code (1)."; exit 1',
            "ended with status 1: ==ERROR== The app",
        ),
        ('echo "==WARNING== No kernels were profiled."', "no kernel was launched"),
        ("exec sleep 5", "not finished after 0.5 s"),
    ],
)
def test_what_ncu_cannot_do_is_one_line(fake, body, said):
    folder = fake(body)
    with pytest.raises(UserError, match=said):
        ncu.profile(["true"], folder / "r.ncu-rep", timeout=0.5)


def evidence(chosen, rows=TABLE):
    return collect.evidence_of(
        ncu.read_csv(rows), chosen, [], tool_version="1", command=["atrex", "profile"],
        device=DeviceInfo("cuda:0", "NVIDIA H200", "H200", "sm_90"), candidate="k.py", source=b"x", operator="rms_norm",
        shape="0", dsl="triton", work=Work({"vector": {"fp32": 1}}, 4_800_000, 4_800_000),
    )  # fmt: skip


def test_one_of_several_kernels_gets_no_ceiling_of_the_whole_forward():
    several = evidence(1)
    assert several.ceiling is None and "one of 3 kernels" in several.note


def test_a_forward_of_one_kernel_is_compared_with_its_roofline():
    alone = evidence(0, "\n".join(TABLE.splitlines()[:4]))
    assert alone.ceiling.roofline_us == pytest.approx(2.0) and alone.ceiling.card == "chip-h200"
    assert alone.figures()["atrex.roofline_share"] == pytest.approx(2.0 / 2.304)


def test_the_host_s_time_is_read_from_a_run_of_its_own(tmp_path):
    script = tmp_path / "forward.sh"
    script.write_text('echo compiling; [ "$1" = --time ] && echo \'{"host_us": 53.5}\'')
    assert collect.host_us(["sh", str(script)]) == 53.5
    assert collect.host_us(["sh", "-c", "exit 3"]) is None


CANDIDATE = "import torch, triton\n\nclass Model(torch.nn.Module):\n    def forward(self, x, weight): return x\n"


def run_profile(*arguments):
    return CliRunner().invoke(app, ["profile", *map(str, arguments)], catch_exceptions=False)


def test_the_command_writes_evidence_of_the_kernel_that_was_asked_for(fake, tmp_path, monkeypatch):
    fake('touch "$out"')
    monkeypatch.setattr(detect, "describe", lambda device: DeviceInfo("cuda:0", "NVIDIA H200", "H200", "sm_90"))
    monkeypatch.setattr(collect, "host_us", lambda command: 80.0)
    (tmp_path / "mine.py").write_text(CANDIDATE)
    out = tmp_path / "out" / "evidence.json"
    result = run_profile(
        tmp_path / "mine.py", "--problem", "rms_norm", "--shape", "0", "--out", out, "--kernel", "gemm", "--launch", "1"
    )
    assert result.exit_code == 0 and "*   2" in result.output
    evidence = read_evidence(out)
    assert (evidence.kernel.name, evidence.kernel.index, evidence.kernel.us) == ("gemm_kernel", 2, 8.0)
    assert (evidence.operator, evidence.shape, evidence.dsl) == ("rms_norm", "0", "triton")
    assert evidence.figures()["atrex.host_over_device"] == pytest.approx(80 / 19.3045)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--shape", "99"], "no shape '99'"),
        (["--shape", "0", "--device", "cpu"], "ncu profiles NVIDIA GPUs only"),
        (["--shape", "0", "--problem", "rmsnorm"], "unknown operator"),
    ],
)
def test_what_cannot_be_profiled_is_one_line(tmp_path, arguments, said):
    (tmp_path / "rms_norm.py").write_text(CANDIDATE)
    with pytest.raises(UserError, match=said):
        run_profile(tmp_path / "rms_norm.py", *arguments, "--out", tmp_path / "e.json")
