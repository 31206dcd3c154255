"""`atrex compare`, end to end on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "candidates"
TORCH, WRONG = EXAMPLES / "torch" / "rms_norm.py", EXAMPLES / "wrong" / "rms_norm.py"


def compare(*arguments):
    command = [sys.executable, "-m", "atrex.cli.main", "compare", *map(str, arguments), "--device", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def slower(tmp_path_factory):
    path = tmp_path_factory.mktemp("slower") / "rms_norm.py"
    source = TORCH.read_text().replace("class Model(", "class Honest(")
    path.write_text(
        source + "\n\nclass Model(Honest):\n    def forward(self, x, weight):\n"
        "        for _ in range(12):\n            out = super().forward(x, weight)\n        return out\n"
    )
    return path


@pytest.mark.alone
def test_a_kernel_that_does_the_work_twelve_times_is_slower(slower, tmp_path):
    record = tmp_path / "found.json"
    done = compare(slower, TORCH, "--shapes", "46", "--rounds", "6", "--out", record)
    assert done.returncode == 0, done.stderr
    assert "B is faster than A" in done.stdout
    found = json.loads(record.read_text())
    assert len(found["times_us"]["46"]) == 6
    assert found["comparison"]["overall"]["low"] > 2


@pytest.mark.alone
def test_a_wrong_kernel_stops_the_comparison_and_says_why():
    done = compare(TORCH, WRONG, "--shapes", "46", "--rounds", "3")
    assert done.returncode == 1
    assert "not compared" in done.stdout and "numeric_mismatch" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((TORCH, EXAMPLES / "cpp" / "silu_and_mul.py"), "name one with --problem"),
        ((TORCH, TORCH, "--rounds", "2"), "expected at least 3"),
        ((TORCH, "nowhere.py"), "nowhere.py"),
    ],
)
def test_bad_input_is_one_line(arguments, said):
    done = compare(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and said in done.stderr
