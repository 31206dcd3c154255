"""Shapes from traces: which kernels are one call, and where each dimension comes from."""

import json

import pytest

from atrex.errors import UserError
from atrex.problems.load import load_suite
from atrex.problems.model import Shape
from atrex.traces import importer
from atrex.traces.dataset import open_dataset
from atrex.traces.fleet.held_out import held_out
from atrex.traces.fleet.spec import Application
from atrex.traces.mining import operators
from atrex.traces.mining.calls import CallGroup, HostOp, calls_of
from atrex.traces.mining.config import ModelConfig, read_model_config
from atrex.traces.mining.dims import Call, Unknown, values
from atrex.traces.mining.mine import bucket_of
from atrex.traces.pipeline import Options
from tests.traces import scene, test_dataset, test_graphs

SUITE = load_suite()
CONFIG = {
    "hidden_size": 256, "intermediate_size": 48, "moe_intermediate_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 1000,
    "rms_norm_eps": 1e-5, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "rope_scaling": {"mrope_section": [2, 3, 3]}, "quantization_config": {"weight_block_size": [128, 128]},
}  # fmt: skip


def config(tmp_path, **changes):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return path


def group(operator="rms_norm", phase="decode", ops=(), step=None, **more):
    found = {"prefill_share": None, "ns": [1000.0], "symbols": ("k",), "modules": (), "annotations": (),
             "captured": False, "runs": False, **more}  # fmt: skip
    return CallGroup(trace="t", operator=operator, phase=phase, ops=tuple(ops), step=step or {}, **found)


def app(**fields):
    return Application(card_hours=1, traces=["-"], **fields)


def op(name, *dims, concrete=()):
    return HostOp(name, False, list(dims), ["c10::BFloat16"] * len(dims), list(concrete))


def dims_of(operator, ops, known=None, application=None, **more):
    call = Call(group(operator, ops=ops, **more), known, application or app())
    return operators.module(operator).dims(call)


def shape_of(operator, ops, **more):
    return operators.module(operator).kwargs(values(dims_of(operator, ops, **more)))[1]


def test_every_operator_of_the_suite_has_a_file():
    assert set(operators.known()) == set(SUITE.problems)


OPERANDS = {
    "block_scaled_mm": [op("vllm::w8a8_triton_block_scaled_mm_func", [5, 128], [256, 128])],
    "linear_sigmoid_mul": [op("sgl_kernel::fused_linear_sigmoid_mul", [5, 64], [48, 64], [48], [5, 48])],
    "attention_forward": [op("aten::scaled_dot_product_attention", [2, 4, 6, 16], [2, 4, 6, 16], [2, 4, 6, 16])],
}
STEP = {"prefill": {"context_requests": 2, "context_tokens": 6, "tokens": 6},
        "decode": {"generation_requests": 3, "generation_tokens": 3, "generation_kv": 60, "tokens": 3}}  # fmt: skip


def small(operator, tmp_path):
    """Dimensions of a small call of an operator: configured ones, and those of a step."""
    phase = "decode" if SUITE.problem(operator).metadata.phase == "decode" else "prefill"
    known = read_model_config(config(tmp_path))
    call = Call(group(operator, phase, OPERANDS.get(operator, ()), STEP[phase]), known, app(block_size=16))
    return operators.module(operator).dims(call)


@pytest.mark.parametrize("operator", sorted(SUITE.problems))
def test_every_operator_has_held_out_shapes_near_its_own(operator, tmp_path):
    dims = small(operator, tmp_path)
    own = operators.module(operator).kwargs(values(dims))
    problem = SUITE.problem(operator)
    found = held_out(operator, [dims])
    assert len(found) >= 3 and own not in found
    sizes = []
    for init, kwargs in found:
        shape = Shape("h", init, kwargs)
        problem.make_inputs(shape, 1, "cpu")
        sizes.append(problem.work(shape).total_bytes)
    assert max(sizes) > problem.work(Shape("own", *own)).total_bytes


@pytest.mark.parametrize("operator", sorted(SUITE.problems))
def test_the_arguments_of_every_operator_make_inputs_and_run(operator, tmp_path):
    problem = SUITE.problem(operator)
    init, kwargs = operators.module(operator).kwargs(values(small(operator, tmp_path)))
    shape = Shape("x", init, kwargs)
    inputs = problem.make_inputs(shape, 1, "cpu")
    problem.reference(shape)(**inputs)
    assert problem.work(shape).total_bytes > 0
    names = [set(s.init_kwargs) for s in problem.shapes.values()]
    assert set(init) in names, f"expected one of {names}"


@pytest.mark.parametrize(
    ("operator", "ops", "expected"),
    [
        ("rms_norm", [op("_C::rms_norm", [888, 2880], [888, 2880], [2880], [])],
         {"token_count": 888, "hidden_size": 2880}),
        ("rms_norm", [op("sglang_profiler::utils_apply_qk_norm_487", [15360, 4096], [15360, 1024]),
                      op("aiter::rmsnorm", [122880, 128], [122880, 128], [128], [])],
         {"token_count": 122880, "hidden_size": 128}),
        ("rms_norm", [op("aten::pow", [8, 512, 32, 128], [])], {"token_count": 131072, "hidden_size": 128}),
        ("fused_add_rms_norm", [op("_C::fused_add_rms_norm", [16, 4096], [16, 4096], [4096], [])],
         {"token_count": 16, "hidden_size": 4096}),
        ("silu_and_mul", [op("_C::silu_and_mul", [16, 1536], [16, 3072])], {"shape": [16, 3072]}),
        ("silu_and_mul", [op("aten::silu", [8, 1, 12288]), op("aten::mul", [8, 1, 12288], [8, 1, 12288])],
         {"shape": [8, 24576]}),
        ("fused_moe", [op("aten::index", [32], []), op("aten::index", [4, 2048], []),
                       op("aten::_grouped_mm", [32, 2048], [128, 2048, 1536], [128])],
         {"token_count": 4, "hidden_size": 2048, "intermediate_size": 768, "num_experts": 128, "top_k": 8}),
        ("moe_topk_gating_softmax", [op("aten::softmax", [4, 128], []), op("aten::copy_", [4, 8], [4, 8], [])],
         {"token_count": 4, "num_experts": 128}),
        ("moe_sum_reduce", [op("aten::sum", [4, 8, 2048], [])], {"token_count": 4, "top_k": 8, "hidden_size": 2048}),
        ("reshape_and_cache", [op("_C_cache_ops::reshape_and_cache_flash", [888, 1, 64], [888, 1, 64],
                                  [4000, 32, 1, 64], [4000, 32, 1, 64], [888])],
         {"shape": [888, 1, 64], "block_size": 32}),
        ("block_scaled_mm", [op("vllm::w8a8_triton_block_scaled_mm_func", [33, 4096], [1024, 4096])],
         {"m": 33, "n": 1024, "k": 4096, "group_n": 128, "group_k": 128}),
    ],
)  # fmt: skip
def test_operands_of_the_frameworks_become_the_suites_arguments(operator, ops, expected):
    assert shape_of(operator, ops) == expected


def attention(q, k, causal=True, **more):
    core = op("aten::scaled_dot_product_attention", q, k, k, concrete=["", "", "", "", "0.", str(causal)])
    return group("attention_forward", ops=[core], **more)


@pytest.mark.parametrize(
    ("q", "k", "causal", "served"),
    [
        ([8, 32, 512, 128], [8, 32, 512, 128], True, "unified_attention"),
        ([8, 32, 512, 128], [8, 8, 512, 128], False, "unified_attention"),
        ([8, 16, 512, 72], [8, 16, 512, 72], False, None),
        ([8, 32, 1, 128], [8, 8, 514, 128], False, "paged_attention_decode"),
    ],
)
def test_attention_is_served_by_the_problem_that_means_it(q, k, causal, served):
    assert operators.module("attention_forward").serves(Call(attention(q, k, causal), None, app())) == served


@pytest.mark.parametrize(
    ("ops", "quantization", "served"),
    [
        ([], None, None),
        ([], "fp8_block", "fp8_blockscale_fused_moe"),
        ([op("aten::_grouped_mm", [8, 64], [4, 64, 96])], "fp8_block", None),
    ],
)
def test_experts_without_a_dtype_are_of_the_applications_quantization(ops, quantization, served):
    call = Call(group("fused_moe", ops=ops), None, app(quantization=quantization))
    assert operators.module("fused_moe").serves(call) == served


def test_a_model_config_tells_its_quantization(tmp_path):
    about = {"quant_method": "fp8", "weight_block_size": [64, 32]}
    known = read_model_config(config(tmp_path, quantization_config=about))
    call = Call(group("fused_moe"), known, app())
    assert operators.module("fused_moe").serves(call) == "fp8_blockscale_fused_moe"
    assert (known.get("group_n"), known.get("group_k")) == (64, 32)


def test_a_causal_prompt_becomes_unified_attention():
    call = Call(attention([2, 32, 5, 128], [2, 8, 7, 128]), None, app(block_size=32))
    found = operators.module("unified_attention")
    assert found.kwargs(values(found.dims(call)))[1] == {
        "num_seqs": 2, "seq_lens": [{"count": 2, "length": 5}], "num_query_heads": 32, "num_kv_heads": 8,
        "head_size": 128, "block_size": 32, "context_lens": [{"count": 2, "length": 2}],
    }  # fmt: skip


def test_a_mixed_step_becomes_prompts_and_single_tokens():
    step = {"context_requests": 3, "context_tokens": 100, "context_kv": 130, "generation_requests": 4,
            "generation_tokens": 4, "generation_kv": 402}  # fmt: skip
    ops = [op("vllm::unified_attention_with_output", [104, 64, 64], [104, 8, 64], [104, 8, 64])]
    kwargs = shape_of("unified_attention", ops, phase="mixed", step=step)
    assert kwargs["num_seqs"] == 7
    assert kwargs["seq_lens"] == [{"count": 1, "length": 34}, {"count": 2, "length": 33}, {"count": 4, "length": 1}]
    assert kwargs["context_lens"] == [
        {"count": 3, "length": 10}, {"count": 2, "length": 100}, {"count": 2, "length": 99}
    ]  # fmt: skip


def test_single_tokens_with_a_kernel_of_their_own_are_not_in_the_prompts_call():
    step = {"context_requests": 2, "context_tokens": 100, "context_kv": 100, "generation_requests": 4,
            "generation_tokens": 4, "generation_kv": 402}  # fmt: skip
    ops = [op("_vllm_fa3_C::fwd", [100, 64, 64], [4000, 8, 64], [4000, 8, 64])]
    prompts = group("attention_forward", "mixed", ops, step)
    found = operators.module("unified_attention")
    counts = {}
    for ran in (set(), {("paged_attention_decode", "mixed")}):
        counts[bool(ran)] = found.kwargs(values(found.dims(Call(prompts, None, app(), ran=ran))))[1]["num_seqs"]
    assert counts == {False: 6, True: 2}


def test_keys_that_were_repeated_for_the_product_count_once():
    repeated = op("aten::clone", [16, 8, 4, 1088, 128], [])
    core = op("aten::scaled_dot_product_attention", [16, 32, 1, 128], [16, 32, 1088, 128], [16, 32, 1088, 128])
    assert shape_of("paged_attention_decode", [repeated, core])["num_kv_heads"] == 8


# Where dimensions come from


def sources(dims):
    return {name: d.source for name, d in dims.items()}


def test_traced_dimensions_are_called_traced():
    dims = dims_of("rms_norm", [op("_C::rms_norm", [8, 64], [8, 64], [64], [], concrete=["", "", "", "1e-05"])])
    assert sources(dims) == {"tokens": "traced", "hidden_size": "traced", "eps": "traced"} and dims["eps"].value == 1e-5


def test_missing_fixed_dimensions_are_configured_and_missing_dynamic_ones_of_the_step(tmp_path):
    dims = dims_of("rms_norm", [], known=read_model_config(config(tmp_path)), step={"tokens": 27})
    assert values(dims) == {"tokens": 27, "hidden_size": 256, "eps": 1e-5}
    assert sources(dims) == {"tokens": "traced", "hidden_size": "configured", "eps": "configured"}


def test_without_a_step_dynamic_dimensions_are_typical(tmp_path):
    known = read_model_config(config(tmp_path))
    fleet = app(typical={"decode": {"requests": 32, "context": 2048}, "prefill": {"tokens": 4096}})
    dims = dims_of("paged_attention_decode", [], known=known, application=fleet)
    assert (dims["requests"].value, dims["context"].value) == (32, 2048)
    assert sources(dims)["requests"] == sources(dims)["context"] == "typical"
    assert dims_of("rms_norm", [], known=known, application=fleet, phase="prefill")["tokens"].value == 4096
    assert dims_of("rms_norm", [], known=known, application=fleet, phase="decode")["tokens"].value == 32


def test_what_is_missing_is_named_with_what_would_give_it(tmp_path):
    with pytest.raises(Unknown, match="hidden_size: no operand gives it, and the application has no model_config"):
        dims_of("rms_norm", [], step={"tokens": 4})
    with pytest.raises(Unknown, match=r"tokens: .* fleet.yaml has no typical.decode.tokens"):
        dims_of("rms_norm", [], known=read_model_config(config(tmp_path)))
    with pytest.raises(Unknown, match="its model_config has no kv_lora_rank"):
        dims_of("mla_decode_attention", [], known=ModelConfig({"num_heads": 4}), step={**STEP["decode"]})


@pytest.mark.parametrize(
    ("captured", "annotations", "tokens"),
    [(True, ("capture_32_FULL",), 27), (True, (), 32), (False, ("capture_32_FULL",), 32)],
)
def test_the_padded_batch_of_a_captured_graph_is_the_steps_own(captured, annotations, tokens):
    ops = [op("_C::rms_norm", [32, 64], [32, 64], [64], [])]
    dims = dims_of("rms_norm", ops, step={"tokens": 27}, captured=captured, annotations=annotations)
    assert dims["tokens"].value == tokens


def test_rows_of_heads_are_corrected_with_their_tokens():
    ops = [op("aiter::rmsnorm", [32 * 8, 128], [32 * 8, 128], [128], [])]
    dims = dims_of("rms_norm", ops, step={"tokens": 27}, captured=True, annotations=("capture_32_FULL",))
    assert dims["tokens"].value == 27 * 8


# Configuration


def test_parallel_cards_divide_heads_widths_and_experts(tmp_path):
    known = read_model_config(config(tmp_path), tensor_parallel=4, expert_parallel=2)
    expected = {"num_heads": 1, "num_kv_heads": 1, "intermediate_size": 12, "num_experts": 4, "hidden_size": 256,
                "moe_intermediate_size": 128}  # fmt: skip
    assert {name: known.get(name) for name in expected} == expected


def test_a_width_that_does_not_divide_is_one_line(tmp_path):
    with pytest.raises(UserError, match="config.json: num_attention_heads: 4 does not divide by 3 cards"):
        read_model_config(config(tmp_path, num_key_value_heads=3, intermediate_size=48), tensor_parallel=3)


def test_the_language_part_of_a_model_counts(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "outer", "hidden_size": 1, "text_config": CONFIG}))
    known = read_model_config(path)
    assert known.get("hidden_size") == 256 and known.names == ("outer",)


@pytest.mark.parametrize(("text", "said"), [("[]", "expected a JSON object"), ("{", "not JSON")])
def test_a_file_that_is_no_config_is_one_line(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=said):
        read_model_config(tmp_path / "config.json")


# Buckets


@pytest.mark.parametrize(
    ("kind", "value", "edge"),
    [("tokens", 1, 1), ("tokens", 3, 4), ("tokens", 4096, 4096), ("tokens", 4097, 8192), ("context", 0, 0),
     ("tokens", 2**21 + 5, 2**21 + 5)],
)  # fmt: skip
def test_a_value_belongs_to_the_first_edge_that_is_not_under_it(kind, value, edge):
    assert bucket_of(kind, value) == edge


# Calls


def imported(tmp_path, built):
    (tmp_path / "a.json").write_bytes(scene.render(built.events))
    importer.import_files([tmp_path / "a.json"], tmp_path / "data", Options(), jobs=1)
    data = open_dataset(tmp_path / "data")
    return calls_of(data, data.serving()[0])


def under(built, module, calls):
    """Operators that launch one kernel each, (op, kernel, ns, dims), inside one module."""
    start = built.host
    built.host += 500
    for name, kernel, ns, dims in calls:
        built.call([name], kernel, ns, dims=dims)
    built.add("python_function", f"nn.Module: {module}", start, built.host - start)
    built.host += 700


POW = "void at::native::vectorized_elementwise_kernel<4, at::native::pow_tensor_scalar_kernel_impl>(int)"
MEAN = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(int)"
MUL = "void at::native::elementwise_kernel<128, 2, at::native::MulFunctor<float>>(int)"
SILU = "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>(int)"


def test_a_norm_of_many_kernels_is_one_call_a_module(tmp_path):
    built = scene.Scene()
    for width in (64, 64, 32):
        chain = [("aten::pow", POW, 100, [[4, width], []]), ("aten::mean", MEAN, 200, [[4, width], []]),
                 ("aten::mul", MUL, 300, [[4, width], [4, 1]])]  # fmt: skip
        under(built, f"Qwen3RMSNorm_{width}", chain)
    found = {g.ops[-1].dims[0][-1]: g for g in imported(tmp_path, built) if g.operator == "rms_norm"}
    assert {width: (g.calls, g.ns[0]) for width, g in found.items()} == {64: (2, 600.0), 32: (1, 600.0)}


def test_an_activation_and_the_product_after_it_are_one_call(tmp_path):
    built = scene.Scene()
    start = built.host
    built.host += 500
    under(built, "SiLUActivation_0", [("aten::silu", SILU, 100, [[4, 48]])])
    built.call(["aten::linear", "aten::mm"], "nvjet_tst_64x8", 900)
    built.call(["aten::mul"], MUL, 150, dims=[[4, 48], [4, 48]])
    built.add("python_function", "nn.Module: Qwen3MLP_0", start, built.host - start)
    found = [g for g in imported(tmp_path, built) if g.operator == "silu_and_mul"]
    assert [(g.calls, g.ns) for g in found] == [(1, [250.0])]


def test_calls_of_one_custom_operator_in_a_module_are_apart(tmp_path):
    built = scene.Scene()
    norm = "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, int)"
    under(built, "Attention_0", [("_C::rms_norm", norm, 100, [[n, 64], [n, 64], [64]]) for n in (4, 8)])
    found = sorted(g.ops[-1].dims[0][0] for g in imported(tmp_path, built))
    assert found == [4, 8]


def test_calls_of_replays_are_those_of_the_capture_with_the_steps_own_tokens(tmp_path):
    body = [("_C::rms_norm", "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, int)"),
            ("_C::silu_and_mul", "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(int)"),
            ("aten::mm", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT")]  # fmt: skip
    kernels = [kernel for _, kernel in body]
    scenes = {"replay": test_graphs.replay(kernels=kernels, steps=3), "capture": test_graphs.capture(body=body)}
    files = [test_dataset.put(tmp_path, f"{name}.json", built) for name, built in scenes.items()]
    importer.import_files(files, tmp_path / "data", Options(), jobs=1)
    data = open_dataset(tmp_path / "data")
    found = {g.operator: g for g in calls_of(data, "replay")}
    assert {name: (g.calls, g.captured) for name, g in found.items()} == {
        "rms_norm": (3, True), "silu_and_mul": (3, True)
    }  # fmt: skip
    dims = operators.module("rms_norm").dims(Call(found["rms_norm"], None, app()))
    assert (dims["tokens"].value, dims["hidden_size"].value) == (13, 4096)


def test_neighbours_without_host_ranges_are_divided_by_their_rarest_kernel(tmp_path):
    built = scene.Scene()
    correlation = built.launch(None, 0, api="cudaGraphLaunch")
    for _ in range(3):
        built.record("void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(int)", 100, correlation)
    built.record("nvjet_tst_64x8", 500, correlation)
    for kernel, ns in (("paged_attention_ll4mi_QKV_mfma16_kernel", 300), ("paged_attention_ll4mi_reduce_kernel", 40)):
        built.record(kernel, ns, correlation)
    found = {g.operator: (g.calls, g.ns[0], g.runs) for g in imported(tmp_path, built)}
    assert found == {"rms_norm": (3, 100.0, True), "paged_attention_decode": (1, 340.0, True)}
