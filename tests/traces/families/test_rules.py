"""Rule files: what a writer of rules may do, and what he is told when it goes wrong."""

from importlib import resources

import pytest

from atrex.errors import UserError
from atrex.traces.families.match import Matcher
from atrex.traces.families.rules import load_rules
from atrex.traces.families.versions import VersionRange, parse_version
from atrex.traces.linking import Context

FAMILIES = """
families:
  a: {what: a family, operator: rms_norm}
  b: {what: another}
  other: {what: nothing, mapped: false}
"""


def rules(tmp_path, text, families=FAMILIES):
    (tmp_path / "families.yaml").write_text(families)
    (tmp_path / "mine.yaml").write_text(text)
    return load_rules(tmp_path)


def test_a_file_of_your_own(tmp_path):
    matcher = Matcher(rules(tmp_path, "framework: mine\nrules:\n  - {family: a, kernel: '^my_'}"))
    assert matcher.classify("my_kernel").operator == "rms_norm"
    assert matcher.classify("my_kernel").rule == "mine:1"
    assert matcher.classify("another").family == "other"


def test_more_conditions_win_then_order(tmp_path):
    text = """
framework: mine
rules:
  - {family: b, kernel: '^k'}
  - {family: a, kernel: '^k', args: {0: 'true'}}
  - {family: a, kernel: '^k'}
"""
    matcher = Matcher(rules(tmp_path, text))
    assert matcher.classify("k<true>(int)").family == "a"
    assert matcher.classify("k<false>(int)").family == "b"


def test_the_innermost_operator_wins(tmp_path):
    text = """
framework: mine
rules:
  - {family: a, ops: '^outer$', class: unknown}
  - {family: b, ops: '^inner$', class: unknown}
"""
    matcher = Matcher(rules(tmp_path, text))
    assert matcher.classify("x", context=Context(ops=("outer", "inner"))).family == "b"
    assert matcher.classify("x", context=Context(ops=("inner", "outer"))).family == "a"


def test_a_kernel_rule_wins_over_its_surroundings(tmp_path):
    text = "framework: mine\nrules:\n  - {family: a, ops: '^o$', class: unknown}\n  - {family: b, kernel: '^k$'}"
    assert Matcher(rules(tmp_path, text)).classify("k", context=Context(ops=("o",))).family == "b"


def test_versions_of_the_files_package(tmp_path):
    text = (
        "framework: mine\npackage: p\nrules:\n  - {family: a, kernel: k, versions: '>=2'}\n  - {family: b, kernel: k}"
    )
    loaded = rules(tmp_path, text)
    assert Matcher(loaded, {"p": (2, 1)}).classify("k").family == "a"
    assert Matcher(loaded, {"p": (1, 9)}).classify("k").family == "b"
    assert Matcher(loaded).classify("k").family == "a"  # unknown: the newest, which stands first


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("framework: mine\nrules:\n  - {family: c, kernel: k}", "family 'c'"),
        ("framework: mine\nrules:\n  - {family: a, kernel: '('}", "no regular expression"),
        ("framework: mine\nrules:\n  - {family: a, kernle: k}", "kernle"),
        ("framework: mine\nrules:\n  - {family: a, class: nonsense}", "nonsense"),
        ("framework: mine\nrules:\n  - {family: a, kernel: k, versions: 'new'}", "versions"),
        ("framework: mine\nchains:\n  - {family: a, chain: 'pow'}", "pow"),
        ("rules: [", "not YAML"),
        ("rules: []", "framework"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(tmp_path, text, said):
    with pytest.raises(UserError) as error:
        rules(tmp_path, text)
    assert said in str(error.value) and str(error.value).count("\n") == 0


def test_shipped_rules_say_which_file_decided():
    assert Matcher().classify("fused_moe_kernel").rule.startswith("vllm:")


@pytest.mark.parametrize(
    ("text", "version", "inside"),
    [(">=0.26,<0.33", "0.26.0", True), (">=0.26,<0.33", "0.33.0", False), ("<0.33", "0.33.0.dev3+cu130", False),
     ("==1.2", "1.2.0", True), ("!=1.2", "v1.2", False), (">1", "1.0.1", True)],
)  # fmt: skip
def test_version_ranges(text, version, inside):
    assert (parse_version(version) in VersionRange.parse(text)) is inside


def test_every_shipped_expression_compiles():
    with resources.as_file(resources.files("atrex.traces.families") / "data") as folder:
        assert len(load_rules(folder).rules) > 250
