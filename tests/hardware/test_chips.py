"""Chip files: all load, every value is cited, and mistakes that people make in them are rejected."""

import copy
import json

import pytest

from atrex.errors import UserError
from atrex.hardware.chip import CHIPS, chip_ids, load_chip, parse_chip

EXPECTED = {"H200", "H100", "H20", "A100", "L40S", "B200", "MI300X", "MI308X", "MI355X", "XPU-A"}


def raw(chip_id: str) -> dict:
    return json.loads((CHIPS / f"{chip_id}.json").read_text())


def test_every_chip_of_the_suite_ships():
    assert set(chip_ids()) == EXPECTED


@pytest.mark.parametrize("chip_id", sorted(EXPECTED))
def test_chip_loads_and_every_value_is_cited(chip_id):
    chip = load_chip(chip_id.lower())
    assert chip.id == chip_id
    fields = {f"peaks.{engine}.{dtype}" for engine, by_dtype in chip.peaks.items() for dtype in by_dtype}
    assert fields | {"memory_bandwidth"} <= set(chip.sources)
    for entry in chip.sources.values():
        assert entry["source"] and entry["date"] and (entry.get("url") or entry.get("where"))


@pytest.mark.parametrize("chip_id", sorted(EXPECTED - {"XPU-A"}))
def test_real_chips_say_cache_units_and_clock(chip_id):
    chip = load_chip(chip_id)
    assert chip.l2_bytes and chip.units and chip.max_clock_hz and chip.memory_bytes


def test_fp8_encoding_follows_the_chip():
    assert load_chip("MI300X").fp8 == load_chip("MI308X").fp8 == "e4m3fnuz"
    assert load_chip("H200").fp8 == load_chip("MI355X").fp8 == "e4m3fn"
    assert load_chip("A100").fp8 is None


def test_unknown_chip_names_the_known_ones():
    with pytest.raises(UserError, match="unknown chip 'H300'.*H200.*cpu"):
        load_chip("H300")


def set_peak(engine, dtype, factor):
    def mutate(data):
        data["peaks"][engine][dtype]["value"] *= factor

    return mutate


def set_field(path, value):
    def mutate(data):
        *parents, last = path.split(".")
        for key in parents:
            data = data[key]
        data[last] = value

    return mutate


def drop(path):
    def mutate(data):
        *parents, last = path.split(".")
        for key in parents:
            data = data[key]
        del data[last]

    return mutate


@pytest.mark.parametrize("chip_id", sorted(EXPECTED - {"XPU-A"}))
def test_every_sparse_matrix_peak_is_rejected(chip_id):
    data = raw(chip_id)
    for entry in data["peaks"]["matrix"].values():
        entry["value"] *= 2
    with pytest.raises(UserError, match=rf"{chip_id}.json: peaks\.matrix.*sparsity"):
        parse_chip(data, f"{chip_id}.json")


MUTATIONS = [
    (set_peak("matrix", "bf16", 2), "sparsity"),
    (set_peak("matrix", "fp8_e4m3", 2), "fp8_e4m3.*sparsity"),
    (set_peak("vector", "fp32", 2), "peaks.vector.fp32"),
    (set_field("peaks.matrix.bf16.value", 989.4), "peaks.matrix.bf16.value.*TFLOP/s entered"),
    (set_field("peaks.matrix.bf16.unit", "TFLOP/s"), "peaks.matrix.bf16.unit: expected FLOP/s"),
    (set_field("memory_bandwidth.value", 4800), "memory_bandwidth.value.*GB/s"),
    (set_field("memory_bandwidth.unit", "GB/s"), "memory_bandwidth.unit: expected B/s"),
    (set_field("l2_bytes.value", 50), "l2_bytes.value.*MB"),
    (set_field("max_clock.value", 1980), "max_clock.value.*MHz"),
    (set_field("memory_bandwidth.value", "4.8 TB/s"), "memory_bandwidth.value: expected a number"),
    (drop("memory_bandwidth"), "memory_bandwidth: missing"),
    (drop("peaks.vector.fp32"), "peaks.vector.fp32: missing"),
    (drop("peaks.matrix.fp16.source"), "peaks.matrix.fp16.source: missing"),
    (drop("peaks.matrix.fp16.url"), "peaks.matrix.fp16.url: missing"),
    (set_field("l2_bytes.date", "last week"), "l2_bytes.date: expected YYYY-MM-DD"),
    (set_field("fp8", "e5m2"), "fp8: expected"),
    (set_field("name", ""), "name: expected"),
]


@pytest.mark.parametrize(("mutate", "message"), MUTATIONS, ids=[message for _, message in MUTATIONS])
def test_a_mistake_in_a_chip_file_is_one_clear_line(mutate, message):
    data = copy.deepcopy(raw("H200"))
    mutate(data)
    with pytest.raises(UserError, match=message) as caught:
        parse_chip(data, "H200.json")
    assert str(caught.value).startswith("H200.json: ") and "\n" not in str(caught.value)
