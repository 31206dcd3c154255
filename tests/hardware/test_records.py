"""From calibration records to chips."""

import json

import pytest

from atrex.errors import UserError
from atrex.hardware.calibrate import better_of, calibrated_chip, cold_memory, cpu_chip, gpu_record_path
from atrex.hardware.chip import load_chip
from atrex.hardware.record import measurement, read_record, write_record
from atrex.roofline.bound import roofline
from atrex.roofline.work import Work


def point(read, written, size, best, stores="regular"):
    return {"read": read, "written": written, "bytes": size, "best": best, "stores": stores, "spread": 0.0}


def flops(best):
    return {"unit": "FLOP/s", "best": best, "median": best, "spread": 0.0, "n": 1}


def cpu_record(**more):
    record = {
        "schema": 1,
        "kind": "calibration",
        "device": "cpu",
        "chip": "cpu",
        "name": "a CPU",
        "date": "2026-01-02T03:04:05+00:00",
        "command": "atrex hardware calibrate --device cpu",
        "environment": {"threads": 2, "l2": 1 << 21, "llc": 1 << 25},
        "measurements": {
            "vector.fp32": flops(300e9),
            "matmul.fp32": flops(200e9),
            "matmul.bf16": flops(900e9),
            "tile.bf16": flops(2000e9),
            "floor.parallel_region": {"unit": "us", "best": 1.0, "median": 2.0, "spread": 0.5, "n": 9},
        },
        "memory": [
            point(1, 0, 1 << 20, 40e9), point(1, 0, 16 << 20, 30e9), point(1, 0, 64 << 20, 20e9),
            point(1, 1, 1 << 20, 50e9), point(1, 1, 16 << 20, 48e9), point(1, 1, 16 << 20, 52e9, "non-temporal"),
        ],
        "steady_from": 16 << 20,
        "uncertainty": 0.07,
    }  # fmt: skip
    return {**record, **more}


def test_a_matrix_peak_is_the_best_way_to_do_the_work():
    chip = cpu_chip(cpu_record())
    assert chip.peaks["matrix"] == {"fp32": 300e9, "bf16": 2000e9}
    assert chip.peaks["vector"] == {"fp32": 300e9}


def test_cpu_chip_carries_the_uncertainty_of_its_record():
    assert cpu_chip(cpu_record()).uncertainty == 0.07
    assert cpu_chip(cpu_record(uncertainty=0.0)).uncertainty > 0


def test_long_transfers_share_the_best_sustained_bandwidth():
    memory = cold_memory(cpu_record()["memory"], 16 << 20)
    assert memory.curves[1, 0].bandwidth_at(64 << 20) == memory.curves[1, 0].bandwidth_at(16 << 20) == 30e9
    assert memory.curves[1, 1].bandwidth_at(1 << 30) == 52e9


def test_memory_bound_knows_the_mix_of_reads_and_writes():
    chip = cpu_chip(cpu_record())
    read = roofline(Work({}, bytes_read=32 << 20), chip)
    copy = roofline(Work({}, bytes_read=16 << 20, bytes_written=16 << 20), chip)
    assert read.us == pytest.approx((32 << 20) / 30e9 * 1e6)
    assert copy.us == pytest.approx((32 << 20) / 52e9 * 1e6)


def test_writing_a_little_more_never_lowers_the_bound():
    chip = cpu_chip(cpu_record())
    times = [roofline(Work({}, 32 << 20, written), chip).us for written in range(0, 32 << 20, 1 << 20)]
    assert times == sorted(times)


def test_calibrating_again_keeps_what_was_better():
    old, new = cpu_record(), cpu_record(uncertainty=0.2)
    new["measurements"] = {**new["measurements"], "vector.fp32": flops(250e9), "tile.bf16": flops(2500e9)}
    new["memory"] = [point(1, 0, 1 << 20, 45e9), point(1, 1, 1 << 20, 10e9)]
    merged = cpu_chip(better_of(old, new))
    assert merged.peaks["matrix"] == {"fp32": 300e9, "bf16": 2500e9}
    assert merged.memory.curves[1, 0].bandwidth_at(1 << 20) == 45e9
    assert merged.memory.curves[1, 1].bandwidth_at(1 << 20) == 50e9
    assert merged.uncertainty == 0.2


def test_spread_is_how_far_the_rounds_disagree():
    entry = measurement([[1.0, 10.0], [8.0], [9.0, 2.0]], "FLOP/s")
    assert (entry["best"], entry["n"], entry["spread"]) == (10.0, 5, pytest.approx(0.1))


def test_measured_gpu_stands_beside_the_cited_one(tmp_path):
    cited = load_chip("H200")
    assert calibrated_chip(cited, tmp_path) is None
    bytes_per_s = {"unit": "B/s", "spread": 0.0, "n": 5}
    record = {
        "schema": 1, "kind": "calibration", "name": "NVIDIA H200", "date": "2026-01-02", "command": "c",
        "uncertainty": 0.01,
        "measurements": {
            "matrix.bf16": flops(716e12),
            "memory.read": {**bytes_per_s, "best": 4.42e12}, "memory.copy": {**bytes_per_s, "best": 4.27e12},
            "memory.write": {**bytes_per_s, "best": 4.6e12},
        },
    }  # fmt: skip
    write_record(record, gpu_record_path("H200", tmp_path))
    measured = calibrated_chip(cited, tmp_path)
    assert measured.peaks["matrix"]["bf16"] == 716e12
    assert measured.peaks["matrix"]["fp16"] == cited.peaks["matrix"]["fp16"]
    assert measured.memory_bandwidth == 4.42e12
    assert cited.peaks["matrix"]["bf16"] == 989.4e12


def test_a_record_that_is_none_is_one_clear_line(tmp_path):
    path = tmp_path / "r.json"
    with pytest.raises(UserError, match="r.json: cannot be read"):
        read_record(path)
    path.write_text("{")
    with pytest.raises(UserError, match="r.json: not valid JSON"):
        read_record(path)
    path.write_text(json.dumps({"kind": "calibration", "schema": 99}))
    with pytest.raises(UserError, match="not a calibration record of schema 1"):
        read_record(path)


def test_an_unwritable_place_for_a_record_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the calibration record"):
        write_record({}, tmp_path / "file" / "record.json")
