"""`atrex baseline` as a user meets it: judged by the gate, joined by `atrex score`, clear about what is missing."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "candidates" / "torch" / "rms_norm.py"


def atrex(*arguments, cwd, timeout=280):
    command = [sys.executable, "-m", "atrex.cli.main", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)


def absent(distribution):
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


def units(run):
    return [json.loads(line) for line in (run / "units.jsonl").read_text().splitlines()]


def test_the_baselines_are_listed_with_what_they_have(tmp_path):
    done = atrex("baseline", "--json", cwd=tmp_path)
    rows = {row["baseline"]: row for row in json.loads(done.stdout)["baselines"]}
    assert {"torch", "torch.compile", "fla", "liger", "flashinfer", "quack", "vllm", "sglang", "aiter"} <= set(rows)
    assert len(rows["torch.compile"]["operators"]) == 30
    assert rows["torch"]["installed"] and "pip install" in rows["fla"]["install"]


def test_an_unknown_baseline_is_one_line(tmp_path):
    done = atrex("baseline", "cudnn", cwd=tmp_path)
    assert done.returncode == 2 and "expected one of torch" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.skipif(not absent("vllm"), reason="vllm is installed here")
def test_a_missing_library_is_one_line_with_how_to_install_it(tmp_path):
    done = atrex("baseline", "vllm", "--problem", "rms_norm", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "error: baseline vllm: vllm is not installed: pip install vllm==0.20.2",
    ]


@pytest.mark.skipif(absent("fla-core"), reason="fla-core is not installed")
def test_a_library_that_needs_a_gpu_says_so(tmp_path):
    done = atrex("baseline", "fla", "--problem", "rms_norm", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 2 and "runs on cuda only, not on cpu" in done.stderr


def test_the_code_of_a_baseline_can_be_read_without_its_library(tmp_path):
    done = atrex("baseline", "sglang", "--problem", "rms_norm", "--source", cwd=tmp_path)
    assert done.returncode == 0 and "torch.ops.sgl_kernel.rmsnorm" in done.stdout


@pytest.fixture
def made_up(monkeypatch):
    """A library that has rms_norm alone, and of it not every shape."""
    from atrex.baselines import Baseline, base, names

    names()
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    found = Baseline("made-up", __file__, "torch", "pip install torch", ("2",), devices=("cpu",))
    found.covers("rms_norm", "f", lacks=lambda init, inputs: "few tokens" if inputs["token_count"] < 10 else None)(
        object
    )
    return found


@pytest.mark.alone
def test_an_operator_that_a_library_lacks_is_listed_and_no_failure(made_up, capfd):
    from atrex.cli.baseline import baseline

    baseline("made-up", problem=["l2_norm", "mrope"], device="cpu", compile_budget=1.0, as_json=True)
    out, err = capfd.readouterr()
    assert "not in made-up: l2_norm, mrope" in err
    assert json.loads(out)["absent"] == ["l2_norm", "mrope"]


@pytest.mark.alone
def test_a_shape_that_a_library_lacks_is_listed_and_no_failure(made_up, capfd):
    from atrex.cli.baseline import baseline

    baseline("made-up", problem=["rms_norm"], shapes="15", device="cpu", compile_budget=1.0)
    assert "not in made-up: rms_norm 15: few tokens" in capfd.readouterr().err


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """torch's rms_norm and reshape_and_cache, and a candidate, on the smallest shapes."""
    folder = tmp_path_factory.mktemp("judged")
    base = atrex(
        "baseline", "torch", "--problem", "rms_norm", "--problem", "reshape_and_cache", "--shapes", "0", "--quick",
        "--device", "cpu", "--out", "base", "--all-sizes", cwd=folder,
    )  # fmt: skip
    mine = atrex("eval", EXAMPLE, "--shapes", "0", "--quick", "--device", "cpu", "--out", "mine", cwd=folder)
    return folder, base, mine


@pytest.mark.alone
def test_a_baseline_passes_the_gate_of_candidates(judged):
    folder, base, _ = judged
    assert base.returncode == 0, base.stderr
    found = units(folder / "base")
    assert [(r["operator"], r["verdict"]["status"]) for r in found] == [
        ("reshape_and_cache", "passed"), ("rms_norm", "passed")
    ]  # fmt: skip
    assert all(r["performance"]["median_us"] > 0 and r["correctness"]["passed"] for r in found)


@pytest.mark.alone
def test_its_records_name_origin_library_and_version(judged):
    folder, _, _ = judged
    (record,) = [r for r in units(folder / "base") if r["operator"] == "rms_norm"]
    origin = record["baseline"]
    assert (origin["name"], origin["library"], origin["calls"]) == ("torch", "torch", "F.rms_norm")
    assert origin["version"] == importlib.metadata.version("torch")


@pytest.mark.alone
def test_it_has_no_target_dsl_no_adoption_and_no_shortcut(judged):
    folder, _, _ = judged
    for record in units(folder / "base"):
        assert record["dsl"] == "none"
        assert record["adoption"] is None and record["verdict"]["shortcut"] is None


@pytest.mark.alone
def test_its_code_stays_in_the_run_directory(judged):
    folder, _, _ = judged
    assert "F.rms_norm" in (folder / "base" / "artifacts" / "rms_norm.py").read_text()


@pytest.mark.alone
def test_score_joins_the_ratio(judged):
    folder, _, mine = judged
    assert mine.returncode == 0, mine.stderr
    done = atrex("score", "mine", "--baseline", "base", "--json", cwd=folder)
    (candidate,) = json.loads(done.stdout)["runs"][0]["candidates"]
    time = {r["operator"]: r["performance"]["median_us"] for r in units(folder / "base")}["rms_norm"]
    own = units(folder / "mine")[0]["performance"]["median_us"]
    assert candidate["summary"]["baselines"]["torch"]["ratio"] == pytest.approx(time / own)
    shown = atrex("score", "mine", "--baseline", "base", cwd=folder)
    assert "vs torch" in shown.stdout


@pytest.mark.alone
def test_scoring_a_baseline_ranks_nothing(judged):
    folder, _, _ = judged
    done = atrex("score", "base", cwd=folder)
    assert "Baseline: torch (torch" in done.stdout and "never ranked" in done.stdout
    assert "coverage" not in done.stdout and "DSL share" not in done.stdout


@pytest.mark.alone
def test_a_candidates_run_is_no_baseline(judged):
    folder, _, _ = judged
    done = atrex("score", "mine", "--baseline", "mine", cwd=folder)
    assert done.returncode == 2 and "no record of a baseline" in done.stderr


@pytest.mark.alone
def test_a_finished_run_is_continued_or_refused(judged):
    folder, _, _ = judged
    done = atrex("baseline", "torch", "--problem", "rms_norm", "--device", "cpu", "--out", "base", cwd=folder)
    assert done.returncode == 2 and "--resume continues it" in done.stderr


@pytest.mark.alone
def test_a_published_production_time_is_written_on_its_chip_alone(tmp_path):
    from atrex.problems.load import load_suite

    folder = tmp_path / "rms_norm"
    shutil.copytree(load_suite().problem("rms_norm").folder, folder)
    about = json.loads((folder / "metadata.json").read_text())
    about["shapes"]["15"]["production"] |= {"cpu": {"us": 70.0, "backend": "made up"}}
    (folder / "metadata.json").write_text(json.dumps(about))
    done = atrex(
        "eval", EXAMPLE, "--suite", folder, "--shapes", "15", "--device", "cpu", "--quick", "--out", "run",
        "--all-sizes", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = units(tmp_path / "run")
    assert record["baselines"] == {"production": 70.0} and record["production"] == "published, made up"
    assert "published, made up (1 operator)" in atrex("score", "run", cwd=tmp_path).stdout


@pytest.mark.slow
@pytest.mark.timeout(640)
@pytest.mark.alone
def test_torch_compile_passes_the_gate_through_inductors_cpp(tmp_path):
    done = atrex(
        "baseline", "torch.compile", "--problem", "rms_norm", "--shapes", "15", "--quick", "--device", "cpu",
        "--out", "run", cwd=tmp_path, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (record,) = units(tmp_path / "run")
    assert record["verdict"]["status"] == "passed", record["verdict"]
    assert record["baseline"]["calls"].startswith("torch.compile")
