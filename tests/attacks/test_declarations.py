"""What is declared: every known attack, a twin for each, sources that are candidates, a page that maps all ways."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from atrex.attacks.harness.declare import DEVICES, attacks, purpose, select
from atrex.attacks.harness.sources import candidate_source, write_sources
from atrex.attacks.harness.table import _suite
from atrex.errors import UserError
from atrex.evaluate.candidates import Candidate, static_fault

ROOT = Path(__file__).parents[2]
WAYS = range(1, 48)
# What a judge of kernels has to come through, in the field's words.
ACCEPTANCE = [
    "zero_fill", "input_copy", "dropped_operand", "dropped_tail", "fp16_accumulate", "tf32", "nan_output",
    "wrong_form", "in_place_input", "pointer_cache", "value_hash_cache", "call_counter", "super_batch",
    "graph_replay", "side_stream", "python_thread", "cpp_thread", "lazy_subclass", "event_patch", "native_clock",
    "reducer_patch", "stdout_forgery", "proc_seed_read", "ref_import", "fallback_on_exception", "dead_kernel",
    "aliased_matmul", "persisting_l2", "hang", "segfault", "illegal_access", "shared_memory_launch", "fork_bomb",
    "memory_bomb", "giant_stdout", "autotuner", "compile_threads", "workspace_cache", "padding", "mailbox_read",
]  # fmt: skip
FORMS = [
    (name, number, device)
    for name, attack in attacks().items()
    for number, form in enumerate(attack.forms)
    for device in form.devices
]


def table():
    """{way: (attacks, rest)} of docs/attacks.md."""
    rows = {}
    for line in (ROOT / "docs" / "attacks.md").read_text().splitlines():
        if found := re.match(r"\| (\d+) \|[^|]*\|([^|]*)\|([^|]*)\|$", line):
            names = [name.strip() for name in found[2].split(",") if name.strip()]
            assert int(found[1]) not in rows
            rows[int(found[1])] = names, found[3].strip()
    return rows


def test_the_acceptance_list_is_complete():
    assert set(ACCEPTANCE) <= set(attacks())


@pytest.mark.parametrize(("name", "number", "device"), FORMS)
def test_every_source_is_a_candidate(name, number, device):
    form = attacks()[name].forms[number]
    problem = _suite(form.suite).problem(form.operator)
    shape = problem.shape(form.shape(device))
    forward = type(problem.reference(shape)).forward
    assert form.twin not in form.cheats.values()
    for text in [*form.cheats.values(), form.twin]:
        source = candidate_source(form, text, device)
        ast.parse(source)
        path = Path(f"{form.operator}.py")
        candidate = Candidate(path, str(path), str(path), form.operator, source)
        assert static_fault(candidate, forward, dict(shape.init_kwargs)) is None


def test_every_attack_says_what_it_does_and_runs_somewhere():
    for name, attack in attacks().items():
        assert purpose(name).endswith((".", ":")), name
        assert attack.ways and set(attack.ways) <= set(WAYS), name
        assert {device for form in attack.forms for device in form.devices} <= set(DEVICES), name
        assert attack.forms and all(form.cheats for form in attack.forms), name


def test_the_page_maps_every_way_once():
    assert list(table()) == list(WAYS)


def test_the_page_and_the_attacks_name_each_other():
    named = {way: set(names) for way, (names, _) in table().items()}
    declared = {way: {name for name, attack in attacks().items() if way in attack.ways} for way in WAYS}
    assert named == declared


def test_the_tests_that_the_page_names_exist_and_a_way_without_an_attack_has_one_or_a_reason():
    for way, (names, rest) in table().items():
        assert names or rest, way
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", rest):
            assert f"def {test}(" in (ROOT / path).read_text(), (way, test)


def test_an_unknown_attack_is_refused_with_the_known_ones():
    with pytest.raises(UserError, match="no_such: unknown attack; expected one of .*zero_fill"):
        select(["no_such"])


def test_candidates_are_written_one_a_folder(tmp_path):
    assert write_sources(select(["zero_fill"]), "cpu", tmp_path) == 4
    assert "LIBRARY.rms_norm" in (tmp_path / "zero_fill" / "twin" / "rms_norm.py").read_text()
