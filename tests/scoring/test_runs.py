import json

import pytest
from synthetic import failed, unit, write_run

from atrex.errors import UserError
from atrex.scoring.records import Status, Verdict
from atrex.scoring.runs import group_records, load_run, planned_units, read_run, repair_units


def test_a_run_reads_back_as_it_was_written(tmp_path):
    records = [unit(shape="0"), failed("runtime", "timeout", shape="1")]
    run, read = read_run(write_run(tmp_path, records, chip="H200"))
    assert run["chip"] == "H200" and read == records


def test_an_unfinished_last_line_is_left_out_and_said(tmp_path):
    units = write_run(tmp_path, [unit(shape="0"), unit(shape="1")]) / "units.jsonl"
    units.write_bytes(units.read_bytes()[:-40])
    loaded = load_run(tmp_path)
    assert [r.shape for r in loaded.records] == ["0"]
    assert loaded.truncated > 0 and "1 unfinished last line" in loaded.notes[0]


def test_a_repaired_file_can_be_appended_to(tmp_path):
    units = write_run(tmp_path, [unit(shape="0"), unit(shape="1")]) / "units.jsonl"
    units.write_bytes(units.read_bytes()[:-40])
    assert repair_units(tmp_path) > 0
    with units.open("a") as f:
        f.write(unit(shape="2").model_dump_json())
    assert repair_units(tmp_path) == 0 and units.read_bytes().endswith(b"}\n")
    assert [r.shape for r in load_run(tmp_path).records] == ["0", "2"]


def test_the_last_record_of_a_unit_wins_and_it_is_said(tmp_path):
    loaded = load_run(write_run(tmp_path, [failed("runtime", "timeout"), unit(shape="1"), unit(s=0.25)]))
    assert [(r.shape, r.verdict.status) for r in loaded.records] == [("0", Status.PASSED), ("1", Status.PASSED)]
    assert loaded.duplicates == 1 and "1 repeated unit record" in loaded.notes[0]


def test_a_candidate_that_changed_during_the_run_is_said(tmp_path):
    loaded = load_run(write_run(tmp_path, [unit(shape="0"), unit(shape="1", candidate_sha256="1" * 64)]))
    assert "changed during the run" in loaded.notes[0]


def test_a_run_without_units_is_empty(tmp_path):
    (write_run(tmp_path, []) / "units.jsonl").unlink()
    assert load_run(tmp_path).records == []


@pytest.mark.parametrize(("line", "names"), [
    ("{}", "candidate: Field required"),
    ("not json", "record: Invalid JSON"),
    (unit(shape="1", verdict=Verdict(status="failed", stage="compile", category="slow")), "category slow"),
    (unit(shape="1", verdict=Verdict(status="error", category="exception")), "expected one of"),
    (unit(shape="1", verdict=Verdict(status="passed", category="folder")), "expected none"),
    (unit(shape="1", s=1.5), "roofline.S: 1.5"),
])
def test_a_bad_record_names_file_line_and_field(tmp_path, line, names):
    units = write_run(tmp_path, [unit()]) / "units.jsonl"
    text = line if isinstance(line, str) else line.model_dump_json()
    units.write_text(units.read_text() + text + "\n")
    with pytest.raises(UserError) as e:
        load_run(tmp_path)
    assert f"{units}:2: " in str(e.value) and names in str(e.value) and "\n" not in str(e.value)


def test_a_whole_bad_record_is_no_unfinished_line(tmp_path):
    (write_run(tmp_path, []) / "units.jsonl").write_text("{}")
    with pytest.raises(UserError, match=r"units\.jsonl:1: candidate"):
        load_run(tmp_path)


@pytest.mark.parametrize(("text", "names"), [(None, "missing"), ("{", "not JSON"), ("[]", "expected a JSON object")])
def test_a_bad_run_json_is_one_clear_line(tmp_path, text, names):
    run = write_run(tmp_path, []) / "run.json"
    run.unlink()
    if text is not None:
        run.write_text(text)
    with pytest.raises(UserError, match=rf"run\.json: {names}"):
        load_run(tmp_path)


def test_a_path_that_is_no_directory_is_refused(tmp_path):
    with pytest.raises(UserError, match="not a run directory"):
        load_run(tmp_path / "none")


def test_files_below_a_candidate_directory_are_one_set():
    records = [unit("rms_norm", candidate="k/triton/rms_norm.py"), unit("l2_norm", candidate="k/triton/l2_norm.py"),
               unit("rms_norm", candidate="k/wrong.py")]
    groups = group_records({"candidates": ["k/triton", {"path": "k/wrong.py"}]}, records)
    assert {label: len(group) for label, group in groups.items()} == {"k/triton": 2, "k/wrong.py": 1}


def test_a_candidate_that_run_json_does_not_list_is_a_set_of_its_own():
    assert list(group_records({}, [unit(candidate="a.py"), unit(candidate="b.py")])) == ["a.py", "b.py"]


def test_chips_are_never_one_set_and_devices_of_one_chip_are():
    records = [unit(), unit(device="cpu", chip="cpu")]
    assert list(group_records({}, records)) == ["kernels/triton on H200", "kernels/triton on cpu"]
    assert list(group_records({}, [unit(shape="0"), unit(shape="1", device="cuda:1")])) == ["kernels/triton"]


def test_planned_units_leave_out_held_out_ones():
    run = json.loads('{"planned": [["rms_norm", "0"], ["rms_norm", "h0"], "junk"]}')
    assert planned_units(run) == [("rms_norm", "0")]
