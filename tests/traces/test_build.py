"""A suite from a fleet: what is written, what is left out and why, and that it holds up."""

import json
import os

import pytest
from typer.testing import CliRunner

from atrex.cli.main import app
from atrex.errors import UserError
from atrex.problems.lint import Budget, validate
from atrex.problems.load import load_suite
from atrex.scoring.records import UnitRecord
from tests.scoring.synthetic import unit
from tests.traces import fleets, scene

CONFIG = {
    "_name_or_path": "zebrafish/Zebrafish-7B", "model_type": "zebrafish", "architectures": ["ZebrafishForCausalLM"],
    "hidden_size": 4096, "intermediate_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "vocab_size": 32000, "rms_norm_eps": 1e-6,
}  # fmt: skip
MODEL = {"model_config": "models/zebrafish-7b/config.json"}


def run(*arguments, command="suite", output="stdout"):
    result = CliRunner().invoke(app, [command, *map(str, arguments)], catch_exceptions=True)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, (result.output, result.exception)
    return getattr(result, output)


def fleet(folder, **changes):
    """The small fleet, with a model and typical contexts."""
    (folder / "models" / "zebrafish-7b").mkdir(parents=True, exist_ok=True)
    (folder / "models" / "zebrafish-7b" / "config.json").write_text(json.dumps(CONFIG))
    typical = {"typical": {"decode": {"context": 512}}}
    merged = {name: {**MODEL, **typical, **changes.get(name, {})} for name in (fleets.CHAT, fleets.SEARCH)}
    return fleets.write(folder, **merged)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    out = run("build", "--fleet", fleet(folder), "--out", folder / "suite", "--jobs", 1)
    return folder / "suite", out


def failures(folder, budget):
    found = [validate(p, list(p.shapes.values()), budget=budget) for p in load_suite(folder).problems.values()]
    return [f"{f.operator} {f.shape} {f.check}: {f.detail}" for report in found for f in report.failures]


def test_a_built_suite_validates(built):
    suite = load_suite(built[0])
    assert set(suite.problems) == {"rms_norm", "silu_and_mul", "unified_attention", "paged_attention_decode"}
    assert failures(built[0], Budget(bytes=2**20, flops=1e9)) == []
    assert all(len(problem.held_out) >= 3 for problem in suite.problems.values())


def test_shapes_are_those_of_the_traces(built):
    suite = load_suite(built[0])
    tokens = sorted(s.input_kwargs["token_count"] for s in suite.problem("rms_norm").shapes.values())
    assert tokens == [16, 512, 4096]
    decode = next(iter(suite.problem("paged_attention_decode").shapes.values())).input_kwargs
    assert (decode["num_seqs"], decode["ctx_len"], decode["num_kv_heads"]) == (16, 512, 8)


def test_weights_are_those_of_suite_weights_over_its_operators(built, tmp_path):
    suite = load_suite(built[0])
    document = json.loads(run("weights", "--fleet", fleet(tmp_path), "--json", "--jobs", 1))
    assert sum(suite.weights.values()) == pytest.approx(1) and set(suite.weights) == set(suite.problems)
    assert suite.weights == pytest.approx(document["weights"])


def test_metadata_of_a_mined_shape_says_where_it_is_from(built):
    problem = load_suite(built[0]).problem("rms_norm")
    meta = next(m for i, m in problem.metadata.shapes.items() if problem.shapes[i].input_kwargs["token_count"] == 16)
    assert meta.origin == "mined" and meta.mined.applications == {"chat": 2} and meta.mined.phases == {"decode": 2}
    assert meta.mined.symbols == ["vllm::rms_norm_kernel"] and meta.mined.frameworks == ["vllm"]
    assert meta.mined.calls == 2 and meta.mined.profiles == 1 and meta.mined.dtypes == ["bf16"]
    dims = {name: (d.value, d.source) for name, d in meta.mined.dims.items()}
    assert dims == {"tokens": (16, "traced"), "hidden_size": (4096, "traced"), "eps": (1e-6, "configured")}
    assert meta.production["H200"].us == pytest.approx(2.301) and meta.production["H200"].backend == "vllm"
    assert meta.call_count == 2 and meta.traced_us["H200"] == pytest.approx(2.301)
    assert problem.metadata.provenance.symbol == "vllm::rms_norm_kernel" and problem.metadata.provenance.profiles == 2


def test_kernels_of_one_family_count_for_the_operator_that_expresses_them(built):
    mined = load_suite(built[0]).problem("unified_attention").metadata.shapes["0"].mined
    assert mined.families == ["attention_forward"]
    assert "attention_forward" not in load_suite(built[0]).weights


def test_the_output_says_coverage_and_families_without_an_operator(built):
    out = built[1]
    assert "their buckets hold 100.0% of the device time" in out and "no operator yet: gemm" in out


def test_shapes_are_kept_up_to_the_coverage(tmp_path):
    out = json.loads(
        run("build", "--fleet", fleet(tmp_path), "--out", tmp_path / "s", "--coverage", 0.5, "--json", "--jobs", 1)
    )
    rms = out["operators"]["rms_norm"]
    assert rms["shapes"] < 3 and rms["beyond_coverage"]["buckets"] >= 1 and 0.5 <= rms["covered"] < 1
    assert rms["covered"] + rms["beyond_coverage"]["share"] == pytest.approx(1)


def test_the_heaviest_member_stands_for_its_bucket(tmp_path):
    path = fleet(tmp_path)
    near = scene.Scene()
    for tokens, times in ((300, 1), (400, 3), (500, 2)):
        for _ in range(times):
            fleets.step(near, f"execute_context_1({tokens})_generation_0(0)", tokens)
    (tmp_path / "chat.json").write_bytes(scene.render(near.events))
    run("build", "--fleet", path, "--out", tmp_path / "s", "--jobs", 1)
    problem = load_suite(tmp_path / "s").problem("rms_norm")
    by_tokens = {s.input_kwargs["token_count"]: problem.metadata.shapes[i].mined for i, s in problem.shapes.items()}
    assert set(by_tokens) == {400, 4096}
    assert (by_tokens[400].members, by_tokens[400].calls) == (3, 6) and by_tokens[400].dims["tokens"].bucket == 512


def too_fast(folder, **changes):
    """Prompts of 4096 tokens whose norm takes less than their bytes do."""
    path = fleet(folder, **changes)
    quick = scene.Scene()
    fleets.step(quick, "execute_context_4(4096)_generation_0(0)", 4096)
    (folder / "search.json").write_bytes(scene.render(quick.events))
    return path


def test_a_shape_under_its_roofline_is_kept_out_and_listed(tmp_path):
    out = json.loads(run("build", "--fleet", too_fast(tmp_path), "--out", tmp_path / "s", "--json", "--jobs", 1))
    found = {k["operator"]: k for k in out["kept_out"]}["rms_norm"]
    assert found["input_kwargs"]["token_count"] == 4096 and found["traced_us"] < found["roofline_us"]
    assert "what ran did less than the shape says" in found["why"]
    problem = load_suite(tmp_path / "s").problem("rms_norm")
    assert 4096 not in [s.input_kwargs["token_count"] for s in problem.shapes.values()]


def test_an_explained_shape_under_its_roofline_is_kept(tmp_path):
    import yaml

    path = too_fast(tmp_path)
    content = yaml.safe_load(path.read_text())
    content["explained"] = [{"operator": "rms_norm", "kwargs": {"token_count": 4096}, "why": "half are padding"}]
    fleets.document(path, content)
    run("build", "--fleet", path, "--out", tmp_path / "s", "--jobs", 1)
    problem = load_suite(tmp_path / "s").problem("rms_norm")
    explained = [m.under_roofline for i, m in problem.metadata.shapes.items() if m.under_roofline]
    assert explained == ["half are padding"]
    assert not [f for f in validate(problem, []).failures]


def unknown_device(folder, **changes):
    path = fleet(folder, **changes)
    header = {**scene.HEADER, "deviceProperties": [{"id": 0, "name": "Accelerator 9", "warpSize": 32}]}
    (folder / "search.json").write_bytes(scene.render(fleets.searching().events, header=header))
    return path


def test_a_device_that_no_chip_file_describes_is_told_and_gives_no_times(tmp_path):
    out = json.loads(run("build", "--fleet", unknown_device(tmp_path), "--out", tmp_path / "s", "--json", "--jobs", 1))
    (note,) = [n for n in out["weights"]["notes"] if "chip file" in n]
    assert note.startswith("search: the device of 1 traces is in no chip file")
    problem = load_suite(tmp_path / "s").problem("rms_norm")
    times = {s.input_kwargs["token_count"]: problem.metadata.shapes[i].production for i, s in problem.shapes.items()}
    assert times[4096] == {} and set(times[16]) == {"H200"}


def test_fleet_yaml_says_which_chip_a_trace_ran_on(tmp_path):
    path = unknown_device(tmp_path, search={"chip": "H100"})
    run("build", "--fleet", path, "--out", tmp_path / "s", "--jobs", 1)
    problem = load_suite(tmp_path / "s").problem("rms_norm")
    times = {s.input_kwargs["token_count"]: problem.metadata.shapes[i].production for i, s in problem.shapes.items()}
    assert set(times[4096]) == {"H100"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("weights", "--fleet", "F", "--phase", "decode"), "expected no --phase or --suite beside it"),
        (("weights", "--out", "w.json"), "--out and --data go with --fleet FILE"),
        (("weights", "--fleet", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        (("weights", "--fleet", "F", "--mixed", "stir"), "--mixed stir: expected one of keep, split"),
        (("build", "--fleet", "F", "--out", "O", "--mixed", "stir"), "--mixed stir"),
        (("diff", "O", "O"), "no such suite folder"),
    ],
)
def test_bad_input_is_one_line(tmp_path, arguments, said):
    names = {"F": fleet(tmp_path / "f"), "O": tmp_path / "out"}
    with pytest.raises(UserError) as error:
        run(*(names.get(a, a) for a in arguments))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_calls_without_a_shape_are_listed_with_the_reason(tmp_path):
    bare = scene.Scene()
    fleets.step(bare, "execute_context_0(0)_generation_16(16)", 16, dims=False)
    path = fleets.write(tmp_path)
    (tmp_path / "chat.json").write_bytes(scene.render(bare.events))
    out = json.loads(run("build", "--fleet", path, "--out", tmp_path / "s", "--json", "--jobs", 1))
    missing = {m["operator"]: m for m in out["without_shapes"]}
    (why,) = missing["rms_norm"]["reasons"]
    assert why == "hidden_size: no operand gives it, and the application has no model_config"
    assert 0 < missing["rms_norm"]["of_operator"] < 1


def test_a_fleet_without_any_shape_is_one_line(tmp_path):
    bare = scene.Scene()
    fleets.step(bare, "execute_context_0(0)_generation_16(16)", 16, dims=False)
    path = fleets.write(tmp_path)
    for name in ("chat.json", "search.json"):
        (tmp_path / name).write_bytes(scene.render(bare.events))
    with pytest.raises(UserError, match="no shape could be mined from its traces"):
        run("build", "--fleet", path, "--out", tmp_path / "s", "--jobs", 1)
    assert not (tmp_path / "s").exists()


def test_a_folder_of_something_else_is_not_overwritten(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "mine.txt").write_text("keep")
    with pytest.raises(UserError, match="exists and is no built suite"):
        run("build", "--fleet", fleet(tmp_path), "--out", tmp_path / "s", "--jobs", 1)
    assert (tmp_path / "s" / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize("name", ["releases.json", "notes.txt", "runs"])
def test_what_no_build_wrote_is_not_removed(tmp_path, name):
    path = fleet(tmp_path)
    run("build", "--fleet", path, "--out", tmp_path / "s", "--jobs", 1)
    (tmp_path / "s" / name).mkdir()
    with pytest.raises(UserError, match="into another folder"):
        run("build", "--fleet", path, "--out", tmp_path / "s", "--jobs", 1)
    assert (tmp_path / "s" / name).exists()


def test_an_explanation_of_no_operator_is_one_line(tmp_path):
    import yaml

    path = fleet(tmp_path)
    content = yaml.safe_load(path.read_text())
    content["explained"] = [{"operator": "rms_nrom", "why": "x"}]
    fleets.document(path, content)
    with pytest.raises(UserError, match="explained.0.operator: no operator 'rms_nrom' in the suite"):
        run("build", "--fleet", path, "--out", tmp_path / "s", "--jobs", 1)


def test_building_again_replaces_what_was_built(built, tmp_path):
    path = fleet(tmp_path)
    for _ in range(2):
        run("build", "--fleet", path, "--out", tmp_path / "s", "--jobs", 1)
    assert set(load_suite(tmp_path / "s").problems) == set(load_suite(built[0]).problems)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


# Redaction


SECRET = "quokkapay"  # the application, and a part of every other name of this fleet


@pytest.fixture(scope="module")
def secret_fleet(tmp_path_factory):
    """A fleet all of whose names hold a word that stands nowhere else."""
    folder = tmp_path_factory.mktemp(f"{SECRET}-traces")
    known = scene.serving()
    custom = f"{SECRET}_fused_kernel_zebrafish"
    known.call([f"{SECRET}::op"], custom, 5_000, f"{SECRET.capitalize()}Attention_1", frame=f"{SECRET}/model.py(3): f")
    known.call(["_C::rms_norm"], f"void vllm::rms_norm_kernel<{SECRET}::bf16>(int)", 9_000, "RMSNorm_9",
               [[16, 4096], [16, 4096], [4096]])  # fmt: skip
    known.call(["_C::rms_norm"], "triton_red_fused_zebrafish_rms_norm_0", 9_500, "RMSNorm_9", [[16, 4096], [4096]])
    (folder / f"{SECRET}-rank0.json").write_bytes(scene.render(known.events))
    (folder / f"{SECRET}-7b").mkdir()
    named = {**CONFIG, "_name_or_path": f"{SECRET}/model", "architectures": ["ZebrafishForCausalLM"]}
    (folder / f"{SECRET}-7b" / "config.json").write_text(json.dumps(named))
    application = {"card_hours": 5, "traces": [f"{SECRET}-*.json"], "model_config": f"{SECRET}-7b/config.json",
                   "typical": {"decode": {"context": 512}}}  # fmt: skip
    content = {"name": f"{SECRET} fleet", "applications": {SECRET: application},
               "explained": [{"operator": "rms_norm", "why": f"{SECRET} pads its batches"}]}  # fmt: skip
    return fleets.document(folder / "fleet.yaml", content)


def everything(folder):
    return {path: path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_redaction_leaves_no_name_in_anything_written_or_printed(secret_fleet, tmp_path):
    arguments = ("build", "--fleet", secret_fleet, "--out", tmp_path / "out", "--redact", "--jobs", 1)
    printed = run(*arguments, output="output")  # what goes to stderr too
    document = run("build", "--fleet", secret_fleet, "--out", tmp_path / "out", "--redact", "--json", "--jobs", 1)
    written = everything(tmp_path / "out")
    assert len(written) > 20
    names = [SECRET, "zebrafish", str(secret_fleet.parent), os.uname().nodename]
    for text in [*written.values(), printed.replace(str(tmp_path), ""), document, *(p.name for p in written)]:
        assert not [name for name in names if name.lower() in text.lower()]
    meta = load_suite(tmp_path / "out").problem("rms_norm").metadata
    assert list(meta.shapes["0"].mined.applications) == ["application-1"]
    assert meta.shapes["0"].mined.symbols == ["vllm::rms_norm_kernel"]
    assert meta.provenance.symbol == "vllm::rms_norm_kernel" and meta.provenance.framework == "vllm"


def test_without_redaction_the_names_are_there(secret_fleet, tmp_path):
    run("build", "--fleet", secret_fleet, "--out", tmp_path / "out", "--jobs", 1)
    assert any(SECRET in text for text in everything(tmp_path / "out").values())


# What follows a built suite


def test_a_run_of_a_built_suite_is_scored_over_its_own_weights_and_shapes(built):
    from atrex.scoring.candidates import score_run
    from atrex.scoring.runs import Run
    from atrex.scoring.suites import scored_over, terms

    suite = load_suite(built[0])
    about = {"suite": str(built[0]), **scored_over(suite)}
    records = [unit(operator="rms_norm", shape=i, origin="mined", s=0.5) for i in suite.problem("rms_norm").shapes]
    weights, shapes = terms([Run(None, about, records)])
    assert weights.values == pytest.approx(suite.weights) and shapes["rms_norm"] == 3
    scored = next(iter(score_run(about, records, weights.values, shapes).values()))
    assert scored.summary.s_agg == pytest.approx(0.5 * suite.weights["rms_norm"])
    assert scored.operators["rms_norm"].fully_correct


def test_the_shipped_suite_is_scored_over_the_published_release():
    from atrex.scoring.published import PUBLISHED_SHAPES
    from atrex.scoring.runs import Run
    from atrex.scoring.suites import scored_over, terms

    assert scored_over(load_suite()) == {}
    assert terms([Run(None, {}, [])])[1] is PUBLISHED_SHAPES


@pytest.mark.slow
def test_a_built_suite_judges_a_candidate(built, tmp_path):
    candidate = tmp_path / "rms_norm.py"
    candidate.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def __init__(self, eps):\n        super().__init__()\n"
        "        self.eps = eps\n\n    def forward(self, x, weight):\n        w = x.float()\n"
        "        y = w * torch.rsqrt(w.square().mean(-1, keepdim=True) + self.eps)\n"
        "        return (y * weight.float()).to(x.dtype)\n"
    )
    done = CliRunner().invoke(
        app,
        ["eval", str(candidate), "--suite", str(built[0]), "--device", "cpu", "--quick", "--dsl", "cpp", "--out",
         str(tmp_path / "run")],
    )  # fmt: skip
    records = [UnitRecord.model_validate_json(line) for line in (tmp_path / "run" / "units.jsonl").open()]
    assert [r.origin for r in records] == ["mined"] and records[0].correct, done.output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["scored_over"]["shapes"]["rms_norm"] == 3


def test_weights_of_operators_outside_a_built_suite_are_left_out():
    from atrex.scoring.suites import within
    from atrex.scoring.weights import Weights

    given = Weights({"rms_norm": 0.2, "silu_and_mul": 0.2, "layer_norm": 0.6}, "w.json")
    found = within(given, {"rms_norm": 1, "silu_and_mul": 2})
    assert found.values == pytest.approx({"rms_norm": 0.5, "silu_and_mul": 0.5})
    (note,) = found.notes
    assert note == "60.0% of the weight is of operators outside the suite that was judged, left out: layer_norm"
    with pytest.raises(UserError, match="no weight for any operator"):
        within(Weights({"layer_norm": 1.0}, "w.json"), {"rms_norm": 1})
