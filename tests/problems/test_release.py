"""Skeletons of new operators, and releases that cannot be edited silently."""

from __future__ import annotations

import pytest

from atrex.errors import UserError
from atrex.problems.lint import CPU_BUDGET, validate
from atrex.problems.load import load_problem, load_suite
from atrex.problems.release import changes, edited, release, releases
from atrex.problems.skeleton import new_problem


def test_a_skeleton_is_a_sound_problem(tmp_path):
    problem = load_problem(new_problem("scale_and_shift", tmp_path))
    report = validate(problem, list(problem.shapes.values()), "cpu", CPU_BUDGET, seed=1)
    assert not report.failures, report.failures


@pytest.mark.parametrize("name", ["Scale", "2x", "a-b", ""])
def test_a_skeleton_needs_a_plain_name(tmp_path, name):
    with pytest.raises(UserError, match="expected lower-case"):
        new_problem(name, tmp_path)


def test_a_skeleton_overwrites_nothing(tmp_path):
    new_problem("mine", tmp_path)
    with pytest.raises(UserError, match="exists already"):
        new_problem("mine", tmp_path)


class TestRelease:
    @pytest.fixture
    def suite(self, tmp_path):
        new_problem("one", tmp_path)
        return tmp_path

    def test_a_release_is_the_suites_version_and_unedited(self, suite):
        entry = release(suite, "1.0", "first")
        assert load_suite(suite).version == "1.0"
        assert edited(suite, "1.0") == [] and entry["changes"]["added"][-1] == "one"

    def test_an_edit_of_a_frozen_release_is_named_and_refused(self, suite):
        release(suite, "1.0", "first")
        path = suite / "one" / "input.py"
        path.write_text(path.read_text() + "\n# another distribution\n")
        assert edited(suite, "1.0") == ["one/input.py"]
        assert load_suite(suite).version == "1.0+edited"
        with pytest.raises(UserError, match="one/input.py"):
            release(suite, "1.0", "again")
        release(suite, "1.1", "inputs")
        assert releases(suite)["1.1"]["changes"]["changed"] == ["one/input.py"]

    def test_a_chips_constant_belongs_to_a_release(self, suite):
        release(suite, "1.0", "first")
        assert "chips/H200.json" in releases(suite)["1.0"]["files"]

    def test_a_release_without_a_change_is_refused(self, suite):
        release(suite, "1.0", "first")
        with pytest.raises(UserError, match="nothing has changed"):
            release(suite, "1.1", "")

    def test_a_damaged_list_of_releases_is_one_line(self, suite):
        (suite / "releases.json").write_text("[1]")
        with pytest.raises(UserError, match="releases.json"):
            releases(suite)


def test_changes_tell_new_operators_from_new_files():
    found = changes({"a/x": "1", "c/x": "1"}, {"a/x": "2", "b/x": "1"})
    assert found == {"added": ["b"], "removed": ["c"], "changed": ["a/x"]}
