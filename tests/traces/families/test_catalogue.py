"""Each family's kernels, as every framework names them, map to one operator.

The names stand in catalogue.yaml.
"""

import json
from pathlib import Path

import pytest
import yaml

import atrex.suite
from atrex.traces.families.match import Matcher
from atrex.traces.families.rules import load_rules
from atrex.traces.linking import Context

CATALOGUE = yaml.safe_load((Path(__file__).parent / "catalogue.yaml").read_text())
CASES = [(family, case) for family, cases in CATALOGUE.items() for case in cases]
_AITER_NORM = "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16E{}ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib"


@pytest.mark.parametrize(("family", "case"), CASES, ids=[f"{f}-{c['framework']}-{c['kernel'][:40]}" for f, c in CASES])
def test_a_kernel_belongs_to_its_family(family, case):
    found = Matcher().classify(
        case["kernel"], context=Context(ops=tuple(case.get("ops", ()))), dtypes=case.get("dtypes", "")
    )
    assert found.family == family, found


def test_frameworks_agree_on_operators_that_several_of_them_have():
    """The families that more than one framework names end in one operator each, and no framework is left out."""
    named = {f: {c["framework"] for c in cases} for f, cases in CATALOGUE.items()}
    assert sum(len(frameworks) > 1 for frameworks in named.values()) >= 20
    assert {"vllm", "sglang", "aiter", "rtp_llm", "flashinfer", "fla", "tensorrt_llm", "transformers"} <= set().union(
        *named.values()
    )


def test_every_operator_of_the_suite_has_a_family_and_a_case():
    operators = {p.parent.name for p in Path(atrex.suite.__file__).parent.glob("*/metadata.json")}
    families = load_rules().families
    assert {f.operator for f in families.values() if f.operator} == operators
    assert operators <= set(CATALOGUE)


def test_a_family_names_the_operator_of_the_same_name():
    assert all(family.operator in (None, name) for name, family in load_rules().families.items())


def test_weights_and_families_speak_of_the_same_operators():
    weights = json.loads((Path(atrex.suite.__file__).parent / "weights.json").read_text())["weights"]
    assert set(weights) == {f.operator for f in load_rules().families.values() if f.operator}


@pytest.mark.parametrize("name", ["my_company_secret_kernel", "void foo::bar<int>(int)", "kernel", "Kernel", ""])
def test_what_no_rule_knows_is_other(name):
    assert Matcher().classify(name).family == "other"


def test_one_aiter_kernel_is_three_operators_by_two_booleans():
    found = {b: Matcher().classify(_AITER_NORM.format(b)).family for b in ("Lb0ELb0", "Lb1ELb0", "Lb1ELb1")}
    assert list(found.values()) == ["rms_norm", "fused_add_rms_norm", "fused_rmsnorm_quant"]


def test_gelu_is_not_silu():
    name = "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::gelu_kernel, true>(c10::BFloat16*)"
    assert Matcher().classify(name).family == "activation"


def test_the_version_decides_where_names_drift():
    known = Matcher(versions={"vllm": (0, 33)})
    old = Matcher(versions={"vllm": (0, 11)})
    assert known.classify("kernel_unified_attention").rule != old.classify("kernel_unified_attention").rule
    assert old.classify("kernel_unified_attention_2d").family == "unified_attention"
