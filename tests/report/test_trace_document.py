"""A data set of traces as data: its shares add up, and say what is not known."""

import pytest

pytest.importorskip("polars", reason="needs atrex[traces]")

from tests.report.made import trace_set

from atrex.report.traces import trace_document
from atrex.traces.dataset import open_dataset
from atrex.traces.pipeline import Options


@pytest.fixture(scope="module")
def document(tmp_path_factory):
    return trace_document(open_dataset(trace_set(tmp_path_factory.mktemp("made") / "traces")))


def test_device_time_is_divided_wholly_by_each_key(document):
    total = document["time"]["total_ns"]
    for by in ("family", "kernel", "phase"):
        assert sum(row["ns"] for row in document["by"][by]["rows"]) == pytest.approx(total)
    assert sum(app["ns"] for app in document["applications"]) == pytest.approx(total)


def test_an_application_is_divided_by_phase_and_by_family(document):
    search = next(app for app in document["applications"] if app["application"] == "search")
    assert sum(search["phases"].values()) == pytest.approx(search["ns"])
    assert sum(search["families"].values()) == pytest.approx(search["ns"])
    assert set(search["phases"]) == {"prefill"}


def test_what_no_rule_covers_is_counted(document):
    (row,) = document["unmapped"]["rows"]
    assert row["name"].startswith("no_rule_covers_this_kernel")
    assert document["unmapped"]["share"] == pytest.approx(row["ns"] / document["time"]["total_ns"])


def test_shapes_of_an_operator_share_its_time(document):
    norms = next(entry for entry in document["shapes"] if entry["operator"] == "rms_norm")
    assert norms["shapes"] == len(norms["rows"]) > 1
    assert sum(row["share"] for row in norms["rows"]) == pytest.approx(1)
    assert norms["rows"][0]["dims"]["hidden_size"] == {"value": 4096, "source": "traced"}
    assert norms["rows"] == sorted(norms["rows"], key=lambda row: -row["ns"])


def test_weights_sum_to_one(document):
    assert sum(document["weights"]["weights"].values()) == pytest.approx(1)


def test_each_trace_says_what_it_lacks(document):
    assert {trace["app"] for trace in document["traces"]} == {"chat plainly", "search"}
    assert all(isinstance(trace["lacks"], list) for trace in document["traces"])


def test_a_set_of_captures_alone_has_no_time_and_says_so(tmp_path):
    from tests.traces import scene
    from tests.traces.test_dataset import capture

    from atrex.traces import importer

    source = tmp_path / "capture.json"
    source.write_bytes(scene.render(capture().events))
    importer.import_files([source], tmp_path / "set", Options(), jobs=1)
    document = trace_document(open_dataset(tmp_path / "set"))
    assert document["time"] is None and "graph captures" in document["notes"][0]
