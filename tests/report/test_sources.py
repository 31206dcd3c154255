"""What an argument of a report is."""

import pytest
from synthetic import unit, write_run

from atrex.errors import UserError
from atrex.report.sources import Kind, below, names, recognise


@pytest.fixture
def tree(tmp_path):
    write_run(tmp_path / "runs" / "one", [unit()])
    (tmp_path / "work" / "campaign" / "kernel").mkdir(parents=True)
    (tmp_path / "work" / "campaign" / "campaign.json").write_text("{}")
    (tmp_path / "work" / "campaign" / "kernel" / "run.json").write_text("{}")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "atrex-traces.json").write_text("{}")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "run.json").write_text("{}")
    return tmp_path


def test_each_kind_is_found_below_a_folder(tree):
    assert [(source.path.name, source.kind) for source in recognise([tree])] == [
        ("one", Kind.RUN), ("traces", Kind.TRACES), ("campaign", Kind.CAMPAIGN),
    ]  # fmt: skip


def test_a_source_named_twice_is_taken_once(tree):
    assert len(recognise([tree, tree / "traces", tree / "work"])) == 3


@pytest.mark.parametrize("what", ["nowhere", "empty", "file"])
def test_an_argument_that_is_none_is_one_line(tree, what):
    (tree / "empty").mkdir()
    (tree / "file").write_text("x")
    with pytest.raises(UserError, match=rf"{what}: .*expected a run .*a campaign .*traces") as raised:
        recognise([tree / "traces", tree / what])
    assert "\n" not in str(raised.value)


def test_a_state_changes_with_a_unit_and_with_nothing_else(tree):
    source = next(source for source in below(tree) if source.kind is Kind.RUN)
    before = source.state()
    (source.path / "artifacts").mkdir(exist_ok=True)
    (source.path / "artifacts" / "log").write_text("x")
    assert source.state() == before
    with (source.path / "units.jsonl").open("a") as file:
        file.write(unit(shape="1").model_dump_json() + "\n")
    assert source.state() != before


def test_names_tell_folders_of_one_name_apart(tmp_path):
    paths = [tmp_path / "a" / "x", tmp_path / "b" / "x", tmp_path / "y"]
    assert list(names(paths).values()) == ["a/x", "b/x", "y"]
