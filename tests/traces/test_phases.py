"""Steps as engines name them."""

import pytest

from atrex.traces.phases import parse_step, phase_of_file


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", "prefill"),
        ("execute_context_3(4096)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_16(16)", "decode"),
        ("execute_context_2(512)_generation_7(7)", "mixed"),
        ("execute_16_context_0(sq0sk0sqsq0sqsk0)_generation_16(sq16sk8193sqsq16sqsk8193)", "decode"),
        ("execute_new_2_cached_0", "prefill"),
        ("execute_new_2_cached_5", "mixed"),
        ("execute_new_0_cached_5", "decode"),
        ("step[DECODE bs=16]", "decode"),
        ("step[EXTEND bs=15 toks=15360]", "prefill"),
        ("step[MIXED bs=4 toks=700]", "mixed"),
        ("step[TARGET_VERIFY bs=8 toks=32]", "decode"),
        ("step[IDLE bs=0]", "none"),
        ("step[DECODE bs=16 c_sqsq=1 g_sk=9]", "decode"),
        ("prefill[bs=2 tok=16384]", "prefill"),
        ("decode[bs=8]", "decode"),
        ("[Executor] _forward_step 12: 1 ctx reqs, 0 gen reqs", "prefill"),
        ("[Executor] _forward_step 13: 0 ctx reqs, 8 gen reqs", "decode"),
        ("[Executor] _forward_step 14: 2 ctx reqs, 8 gen reqs", "mixed"),
        ("prefill", "prefill"),
        ("my_model::decode_step", "decode"),
        ("Prefill batch 3", "prefill"),
    ],
)
def test_phase_of_a_step(name, phase):
    assert parse_step(name).phase == phase


@pytest.mark.parametrize(
    "name",
    ["ProfilerStep#6", "aten::mm", "capture_16_DECODE_x", "## Call CompiledFxGraph decode ##", "undecoded", "prefills",
     "nccl:_all_gather_base", "prefill_and_decode"],
)  # fmt: skip
def test_other_ranges_are_no_steps(name):
    assert name == "capture_16_DECODE_x" or parse_step(name) is None


def test_counts_of_a_mixed_step():
    step = parse_step("execute_8192_context_9(sq8155sk8430sqsq1sqsk2)_generation_37(sq37sk34489sqsq3sqsk4)")
    assert (step.context_requests, step.context_tokens, step.context_kv) == (9, 8155, 8430)
    assert (step.generation_requests, step.generation_tokens, step.generation_kv) == (37, 37, 34489)
    assert step.tokens == 8192
    assert step.prefill_share() == pytest.approx(8155 / 8192)


def test_a_mixed_step_without_tokens_cannot_be_split():
    assert parse_step("[Executor] _forward_step 14: 2 ctx reqs, 8 gen reqs").prefill_share() is None


def test_an_old_vllm_step_with_cached_requests_is_uncertain():
    assert parse_step("execute_new_2_cached_0").certain and not parse_step("execute_new_0_cached_5").certain


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("1700000000-TP-0-DECODE.trace.json.gz", "decode"),
        ("1700000000-TP-0-EXTEND.trace.json.gz", "prefill"),
        ("qwen-prefill.json", "prefill"),
        ("mi300_vllm_prefilldecode_capture.json.gz", None),
        ("prefill-decode.json", None),
        ("trace.json", None),
    ],
)
def test_phase_of_a_file_name(name, phase):
    assert phase_of_file(name) == phase


def test_the_sum_of_squared_lengths_is_no_cache_length():
    step = parse_step("execute_context_1(888_788544)_generation_0(0)")
    assert (step.context_requests, step.context_tokens, step.context_kv) == (1, 888, None)
