"""`atrex hardware` and `atrex doctor` as a user runs them."""

import json

import pytest
from typer.testing import CliRunner

from atrex.cli import doctor as doctor_command
from atrex.cli import hardware as hardware_command
from atrex.cli.main import app
from atrex.errors import UserError
from atrex.hardware.chip import chip_ids

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ATREX_CACHE_DIR", str(tmp_path))


def run(*arguments):
    result = RUNNER.invoke(app, [*arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_list_names_every_chip_and_says_how_to_get_the_cpu():
    text = run("hardware", "list")
    assert all(chip_id in text for chip_id in chip_ids())
    assert "atrex hardware calibrate --device cpu" in text


def test_list_as_json_carries_sources():
    chips = {chip["id"]: chip for chip in json.loads(run("hardware", "list", "--json"))}
    assert chips["H200"]["sources"]["memory_bandwidth"]["url"].startswith("https://")


def test_show_prints_the_source_of_a_figure():
    assert "989.4 TFLOP/s" in (text := run("hardware", "show", "h200"))
    assert "whitepaper" in text


def test_show_an_unknown_chip():
    with pytest.raises(UserError, match="unknown chip 'H300'"):
        RUNNER.invoke(app, ["hardware", "show", "H300"], catch_exceptions=False)


def test_detect_finds_the_cpu():
    found = json.loads(run("hardware", "detect", "--json"))
    assert found[0]["device"] == "cpu" and found[0]["chip"] == "cpu"


def test_calibrate_writes_the_record_where_asked(monkeypatch, tmp_path):
    record = {
        "name": "a CPU", "seconds": 1.0, "uncertainty": 0.05,
        "measurements": {"vector.fp32": {"unit": "FLOP/s", "best": 3e11, "median": 2e11}},
    }  # fmt: skip
    monkeypatch.setattr("atrex.hardware.calibrate.recalibrate_cpu", lambda: record)
    text = run("hardware", "calibrate", "--device", "cpu", "--out", str(tmp_path / "out" / "r.json"))
    assert json.loads((tmp_path / "out" / "r.json").read_text()) == record
    assert "300 GFLOP/s" in text


def test_calibrate_refuses_a_directory_before_it_measures(tmp_path):
    with pytest.raises(UserError, match="is a directory"):
        RUNNER.invoke(app, ["hardware", "calibrate", "--device", "cpu", "--out", str(tmp_path)], catch_exceptions=False)


def test_doctor_covers_every_section_and_says_how_to_get_what_is_missing():
    checks = json.loads(run("doctor", "--json"))
    assert {check["section"] for check in checks} == {"devices", "DSLs", "profilers", "sandbox"}
    names = {check["name"] for check in checks}
    assert {"cpu", "triton", "gluon", "cutedsl", "flydsl", "nvcc", "C++ compiler"} <= names
    assert {
        "CUPTI",
        "ncu",
        "rocprofv3",
        "perf",
        "Landlock",
        "user namespace",
        "no_new_privs",
        "bwrap",
        "workers on cpu",
    } <= names
    for check in checks:
        assert check["works"] or check["how"] or check["detail"]
    ceilings = next(check for check in checks if check["name"] == "cpu ceilings")
    assert not ceilings["works"] and "calibrate" in ceilings["how"]


def test_doctor_finds_nothing_on_an_empty_path_and_survives(monkeypatch):
    monkeypatch.setenv("PATH", "")
    for name in ("CUDA_HOME", "CUDA_PATH", "CXX"):
        monkeypatch.delenv(name, raising=False)
    found = {check["name"]: check for check in json.loads(run("doctor", "--json"))}
    assert not found["C++ compiler"]["works"] and "g++" in found["C++ compiler"]["how"]
    assert not found["perf"]["works"] and "linux-tools" in found["perf"]["how"]


def test_doctor_survives_a_check_that_breaks(monkeypatch):
    def broken():
        raise RuntimeError("no such thing")
        yield

    monkeypatch.setattr(doctor_command, "SECTIONS", (("devices", broken),))
    (check,) = json.loads(run("doctor", "--json"))
    assert not check["works"] and "no such thing" in check["detail"]


def test_amounts_read_as_people_say_them():
    assert hardware_command._amount(4.8e12, "B/s") == "4.8 TB/s"
    assert hardware_command._amount(91.6e12, "FLOP/s") == "91.6 TFLOP/s"
    assert hardware_command._amount(864e9, "B/s") == "864 GB/s"
