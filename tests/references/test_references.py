"""The checks of the references catch a wrong reference, and every operator has one."""

from __future__ import annotations

import hashlib
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from benchmarks.references import page
from benchmarks.references.__main__ import main
from benchmarks.references.baseline_checks import COLUMNS, with_columns
from benchmarks.references.cases import chosen_shapes
from benchmarks.references.outcome import AGREES, DIFFERS, FAILED, NOT_RUN, check_case, check_operator
from benchmarks.references.record import RESULTS, add, meaning, measured, write
from benchmarks.references.registry import PYTORCH, Case, Check, all_checks, version

from atrex.problems.load import load_problem, load_suite

CPU = torch.device("cpu")
SUITE = load_suite()

# operator, implementation, and a change to the reference that makes it wrong in one corner case or in all cases
WRONG = [
    ("rms_norm", "F.rms_norm", "small_rows", "+ self.eps", "+ 10 * self.eps"),
    ("layer_norm", "F.layer_norm", "small_rows", "EPS = 1e-5", "EPS = 1e-6"),
    ("fused_add_rms_norm", "torch.add, F.rms_norm", None, '"residual": total', '"residual": residual'),
    ("silu_and_mul", "F.silu, torch.mul", None, "gate, up = x", "up, gate = x"),
    ("causal_conv1d", "F.conv1d", "ragged_tail", "past[:, tap : tap", "past[:, width - 1 - tap : width - 1 - tap"),
    ("topk_filter", "torch.kthvalue, torch.where", "ties", "logits < kth", "logits <= kth"),
    ("reshape_and_cache", "torch.Tensor.index_put_", None, "slot_mapping >= 0", "slot_mapping > 16"),
    ("moe_sum_reduce", "torch.sum", None, "* self.routed_scaling_factor", "* 0.97"),
    ("moe_count_and_sort", "torch.sort, torch.bincount, torch.cumsum", None, "counts.cumsum(0)])", "counts])"),
    (
        "attention_forward",
        "F.scaled_dot_product_attention by sequence",
        "block_boundary",
        "q.shape[2] ** -0.5",
        "q.shape[2] ** -0.51",
    ),
    (
        "unified_attention",
        "F.scaled_dot_product_attention with an explicit mask",
        "mixed",
        "> position[:, None]",
        ">= position[:, None].clamp(min=1)",
    ),
    (
        "paged_attention_decode",
        "F.scaled_dot_product_attention by sequence",
        "page_boundary",
        "< seq_lens",
        "<= seq_lens",
    ),
]
WRONG_BY_LIBRARY = [
    ("gated_rms_norm", "transformers", None, "normed * gate if", "normed if"),
    ("l2_norm", "transformers", "small_rows", "EPS = 1e-6", "EPS = 1e-5"),
    ("fused_qkv_rope", "transformers", None, "BASE = 10000.0", "BASE = 10001.0"),
    ("mrope", "transformers", None, "frequency >= first + second", "frequency >= second"),
    ("fused_moe", "transformers", None, "silu(gate) * up", "silu(up) * gate"),
    ("gated_delta_rule_update", "transformers", "ragged_tail", "overlap.tril(-1)", "0 * overlap.tril(-1)"),
    ("chunk_gated_delta_rule_state", "transformers", "past_a_chunk", "keep[:, c] * state", "state"),
    ("chunk_delta_rule_output", "fla-core", None, "(decay - decay.transpose(-1, -2))", "(0 * decay)"),
    ("per_token_group_quant_fp8", "torchao", None, "wide.abs().amax(-1)", "wide.amax(-1)"),
]


def check_named(operator: str, name: str | None = None, library: str | None = None) -> Check:
    found = [c for c in all_checks() if c.operator == operator and "cpu" in c.devices]
    return next(c for c in found if c.name == name or c.library == library)


def smallest(problem, corner: str | None) -> Case:
    shapes = chosen_shapes(problem, CPU)
    shape = min(shapes, key=lambda s: problem.work(s).total_bytes)
    if corner is None:
        # Several tokens, so that what differs between them shows.
        shape = min(shapes, key=lambda s: (problem.work(s).total_bytes < 100_000, problem.work(s).total_bytes))
        return Case(problem, shape, shape.id, problem.make_inputs(shape, 20, CPU))
    return Case(problem, shape, f"{shape.id}/{corner}", problem.corner_cases(shape, 20, CPU)[corner]())


def with_reference(operator: str, old: str, new: str, folder):
    target = folder / operator
    shutil.copytree(SUITE.problem(operator).folder, target)
    source = (target / "reference.py").read_text(encoding="utf-8")
    assert old in source, f"{operator}/reference.py has no {old!r}"
    (target / "reference.py").write_text(source.replace(old, new), encoding="utf-8")
    return load_problem(target)


def assert_caught(check: Check, corner: str | None, old: str, new: str, folder) -> None:
    assert check_case(check, smallest(SUITE.problem(check.operator), corner))["verdict"] == AGREES
    wrong = with_reference(check.operator, old, new, folder)
    assert check_case(check, smallest(wrong, corner))["verdict"] == DIFFERS


@pytest.mark.parametrize(("operator", "name", "corner", "old", "new"), WRONG, ids=[row[0] for row in WRONG])
def test_torch_catches_a_wrong_reference(operator, name, corner, old, new, tmp_path):
    assert_caught(check_named(operator, name), corner, old, new, tmp_path)


@pytest.mark.parametrize(
    ("operator", "library", "corner", "old", "new"), WRONG_BY_LIBRARY, ids=[row[0] for row in WRONG_BY_LIBRARY]
)
def test_another_library_catches_a_wrong_reference(operator, library, corner, old, new, tmp_path):
    if version(library) is None:
        pytest.skip(f"{library} is not installed")
    assert_caught(check_named(operator, library=library), corner, old, new, tmp_path)


def test_every_operator_has_a_check_on_the_cpu_or_a_reason():
    assert page.gpu_only() == sorted(page.WHY_NO_CPU)


def test_a_missing_library_is_recorded_and_is_no_check(monkeypatch):
    monkeypatch.setattr("benchmarks.references.outcome.version", lambda library: None)
    check = Check("l2_norm", "its kernel", "vllm", PYTORCH, ("cpu",), lambda case: pytest.fail("was called"))
    (result,) = check_operator(SUITE.problem("l2_norm"), [check], CPU)
    assert result["verdict"] == NOT_RUN
    assert "vllm" in result["install"]


def test_an_implementation_that_raises_is_no_agreement():
    def broken(case: Case) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    check = Check("l2_norm", "its kernel", "torch", PYTORCH, ("cpu",), broken)
    (result,) = check_operator(SUITE.problem("l2_norm"), [check], CPU)
    assert result["verdict"] == "failed to run"
    assert "no such kernel" in result["cases"][0]["reason"]


def test_a_record_keeps_what_other_devices_found(tmp_path):
    problem = SUITE.problem("l2_norm")
    where = {"device": "a device", "versions": {}, "command": "", "date": ""}
    write(tmp_path, problem, torch.device("cuda"), where, [{"verdict": AGREES}])
    path = write(tmp_path, problem, CPU, where, [])
    assert json.loads(path.read_text())["devices"]["cuda"]["checks"] == [{"verdict": AGREES}]


def test_comments_do_not_make_a_record_old_and_code_does(tmp_path):
    now = meaning(SUITE.problem("l2_norm"))
    same = with_reference("l2_norm", "Normalisation of rows", "Rows, normalised", tmp_path / "a")
    other = with_reference("l2_norm", "EPS = 1e-6", "EPS = 1e-5", tmp_path / "b")
    assert meaning(same) == now != meaning(other)


def test_the_hash_of_a_reference_is_the_same_under_every_python(tmp_path):
    (tmp_path / "reference.py").write_text('"""A."""\n\n\nclass Model:\n    def forward(self, x):\n        return -x\n')
    # Python 3.12 and later have fields more in a class and a function, all of them empty here.
    tree = (
        "Module(body=[Expr(value=Constant(value='')), ClassDef(name='Model', body=[FunctionDef(name='forward', "
        "args=arguments(args=[arg(arg='self'), arg(arg='x')]), body=[Return(value=UnaryOp(op=USub(), "
        "operand=Name(id='x', ctx=Load())))])])])"
    )
    assert meaning(SimpleNamespace(folder=tmp_path)) == hashlib.sha256(tree.encode()).hexdigest()[:16]


# ---- known differences


def l2_check(change, **declared) -> Check:
    """A check of l2_norm that gives the reference's output, changed in some cases."""

    def run(case: Case) -> torch.Tensor:
        return change(case.name.partition("/")[2], case.problem.reference(case.shape)(**case.inputs))

    return Check("l2_norm", "its kernel", "torch", PYTORCH, ("cpu",), run, **declared)


def judged(check: Check) -> dict:
    (result,) = check_operator(SUITE.problem("l2_norm"), [check], CPU)
    return result


def shifted(corner: str, out: torch.Tensor) -> torch.Tensor:
    return out + 0.5 if corner == "small_rows" else out


def scaled(out: torch.Tensor, rows: int) -> torch.Tensor:
    """1.6 % too much in the first rows."""
    return torch.cat([(out[:rows].float() * (1 + 2.0**-6)).to(out.dtype), out[rows:]])


def test_a_declared_difference_is_recorded_with_its_reason_and_does_not_count():
    assert judged(l2_check(shifted))["verdict"] == DIFFERS
    result = judged(l2_check(shifted, differs={"small_rows": "it shifts them"}))
    (known,) = [case for case in result["cases"] if "known" in case]
    assert result["verdict"] == AGREES
    assert (known["verdict"], known["known"]) == (DIFFERS, "it shifts them")


def test_a_crash_is_no_declared_difference():
    def broken(corner: str, out: torch.Tensor) -> torch.Tensor:
        if corner == "small_rows":
            raise RuntimeError("illegal access")
        return out

    assert judged(l2_check(broken, differs={"small_rows": "it shifts them"}))["verdict"] == FAILED


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda corner, out: scaled(out, 1 if len(out) >= 64 else 0), AGREES),
        (lambda corner, out: scaled(out, len(out)), DIFFERS),
        (lambda corner, out: torch.cat([out.flatten()[:1] + 1, out.flatten()[1:]]).view(out.shape), DIFFERS),
        (lambda corner, out: torch.full_like(out, float("nan")), DIFFERS),
    ],
    ids=["one row a little off", "all rows a little off", "one wrong element", "nan"],
)
def test_coarser_excuses_a_difference_as_small_as_roundings(change, verdict):
    assert judged(l2_check(change))["verdict"] == DIFFERS
    assert judged(l2_check(change, coarser="it rounds in between"))["verdict"] == verdict


@pytest.mark.parametrize("form", [(-1,), (-1, 1)], ids=["tokens", "a column"])
def test_a_scale_a_token_may_come_in_either_form(form):
    def run(case: Case) -> dict[str, torch.Tensor]:
        found = case.problem.reference(case.shape)(**case.inputs)
        return found | {"scale": found["scale"].reshape(form)}

    check = Check("fused_rmsnorm_quant", "its kernel", "torch", PYTORCH, ("cpu",), run)
    case = smallest(SUITE.problem("fused_rmsnorm_quant"), None)
    assert check_case(check, case)["verdict"] == (AGREES if form == (-1, 1) else DIFFERS)
    assert check_case(with_columns(check, COLUMNS["fused_rmsnorm_quant"]), case)["verdict"] == AGREES


# ---- merging


def entry(date: str, verdict: str, **more) -> dict:
    """What a device found with the first check of l2_norm."""
    result = {"implementation": "transformers l2norm of Qwen3-Next", "library": "transformers", "version": "1"}
    result |= {"kind": PYTORCH, "verdict": verdict} | more
    if verdict != NOT_RUN:
        found = {"case": "0", "verdict": verdict, "worst": 0.5, "outputs": {}}
        result["cases"] = [found]
    return {"device": "a", "versions": {}, "command": "", "date": date, "reference": "r" + date, "checks": [result]}


def merged(folder, *entries: dict) -> dict:
    for found in entries:
        path = add(folder, "l2_norm", {"cuda": found})
    return json.loads(path.read_text())["devices"]["cuda"]


def test_what_did_not_run_replaces_nothing_that_ran(tmp_path):
    found = merged(tmp_path, entry("1", AGREES), entry("2", NOT_RUN, reason="transformers is not installed"))
    (result,) = found["checks"]
    assert result["verdict"] == AGREES
    assert found["date"] == "2"
    assert (measured(found, result)["date"], measured(found, result)["reference"]) == ("1", "r1")


def test_a_newer_result_replaces_an_older_one_in_either_order(tmp_path):
    entries = [entry("1", AGREES), entry("2", DIFFERS)]
    for folder, order in (("a", entries), ("b", entries[::-1])):
        (result,) = merged(tmp_path / folder, *order)["checks"]
        assert result["verdict"] == DIFFERS


def test_a_kept_result_stays_as_old_as_it_is(tmp_path):
    found = merged(tmp_path, entry("1", AGREES), entry("3", NOT_RUN), entry("2", DIFFERS))
    (result,) = found["checks"]
    assert (result["verdict"], measured(found, result)["date"]) == (DIFFERS, "2")


def test_what_no_check_runs_any_more_goes(tmp_path):
    gone = entry("1", AGREES)
    gone["checks"][0]["implementation"] = "a kernel of yesterday"
    (result,) = merged(tmp_path, gone, entry("2", NOT_RUN))["checks"]
    assert result["verdict"] == NOT_RUN


def test_merging_says_known_differences_as_the_checks_do_now(tmp_path):
    check = next(c for c in all_checks() if c.library == "sglang" and c.operator == "fp8_dynamic_per_token_quant")
    found = entry("1", AGREES, implementation=check.name, library="sglang")
    found["checks"][0]["verdict"] = DIFFERS
    found["checks"][0]["cases"].append({"case": "0/tiny", "verdict": DIFFERS, "worst": None, "outputs": {}})
    (tmp_path / "made").mkdir()
    record = {"operator": check.operator, "devices": {"cuda": found}}
    (tmp_path / "made" / f"{check.operator}.json").write_text(json.dumps(record))
    assert main(["--merge", str(tmp_path / "made"), "--out", str(tmp_path / "all")]) == 0
    path = tmp_path / "all" / f"{check.operator}.json"
    (result,) = json.loads(path.read_text())["devices"]["cuda"]["checks"]
    assert result["verdict"] == AGREES
    assert result["cases"][1]["known"] == check.differs["tiny"]


# ---- the page


def test_a_result_of_an_adapter_that_was_mended_is_to_be_found_again(tmp_path):
    check = next(c for c in all_checks() if c.adapter > 1)
    found = entry("1", AGREES, implementation=check.name, library=check.library, kind=check.kind)
    found["versions"] = {"torch": "2", "triton": "3"}
    add(tmp_path, check.operator, {"cuda": found})
    assert "GPU **to be run again**, with a mended adapter" in page.text(tmp_path)
    found["checks"][0]["adapter"], found["date"] = check.adapter, "2"
    add(tmp_path, check.operator, {"cuda": found})
    assert "to be run again" not in page.text(tmp_path)


def test_the_page_says_what_the_records_say():
    assert page.PATH.read_text(encoding="utf-8") == page.text(RESULTS)
