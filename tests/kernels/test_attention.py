"""Attention of kernels/h200: whole sequences, paged caches, latents."""

import pytest

from atrex.suite.lengths import expand
from tests.kernels import machine
from tests.kernels.emulator import load_candidate
from tests.kernels.judging import choices, judge, judge_choices, judge_corners, judge_sizes

LENGTHS = [37, 1, 291, 130]


@pytest.mark.parametrize("seed", [1, 2])
def test_all_configurations_of_attention_forward_agree_with_the_reference(seed):
    module = load_candidate("attention_forward")

    def asked(k):
        lengths = expand(k["seq_lens"])
        return sum(lengths), len(lengths), k["num_heads"], k["head_dim"]

    for shape in choices(module, "attention_forward", asked, lambda k, choice: {"num_heads": 1, "seq_lens": LENGTHS}):
        judge(module, "attention_forward", shape, seed=seed, note=module.config())


@pytest.mark.parametrize("dim", [72, 128])
def test_corner_cases_of_attention_forward_agree_with_the_reference(dim):
    judge_corners(load_candidate("attention_forward"), "attention_forward", num_heads=2, head_dim=dim, seq_lens=[9])


def test_attention_forward_takes_another_number_of_keys():
    judge_sizes(load_candidate("attention_forward"), "attention_forward", num_heads=1, head_dim=128,
                seq_lens=[1, 129, 3, 64], key_lens=[200, 515, 37, 131])  # fmt: skip


PAGED = {"num_query_heads": 16, "num_kv_heads": 4, "head_size": 128, "block_size": 16}


def unified(tma):
    """The candidate, on a machine where TMA brings pages to warp-specialized kernels, or the threads do."""
    module = load_candidate("unified_attention")
    module.TMA = tma
    return module


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"num_query_heads": 10, "num_kv_heads": 1},
        {"num_query_heads": 4, "num_kv_heads": 2, "head_size": 72},
        {"num_query_heads": 2, "num_kv_heads": 2, "head_size": 192},
        {"num_query_heads": 4, "num_kv_heads": 1, "head_size": 256},
        {"num_query_heads": 7, "num_kv_heads": 1, "block_size": 32},
    ],
)
def test_corner_cases_of_unified_attention_agree_with_the_reference(sizes, tma):
    judge_corners(unified(tma), "unified_attention", num_seqs=1, seq_lens=[1], **{**PAGED, **sizes})


def launched():
    return {name for name, _ in machine.stream().launches}


@pytest.mark.parametrize("tma", [True, False])
@pytest.mark.parametrize("chunks", [None, 3, 5])
@pytest.mark.parametrize(
    ("lengths", "contexts"), [([256, 256], None), ([256, 100, 1, 31], [0, 100, 255, 31]), ([40, 64, 65], [100, 0, 190])]
)
def test_unified_attention_keeps_short_sequences(lengths, contexts, chunks, tma):
    module = unified(tma)
    module.SMS = 2  # as if there were many heads
    for name in ("short_config", "batch_config"):
        choose = getattr(module, name, None)
        if chunks and choose:
            other = choose(3, 1, 10)
            choice = chunks if isinstance(other, int) else (chunks, *other[1:])
            setattr(module, name, lambda *_, choice=choice: choice)
    judge_sizes(module, "unified_attention", num_seqs=len(lengths), seq_lens=lengths, context_lens=contexts,
                **{**PAGED, "num_query_heads": 10, "num_kv_heads": 1})  # fmt: skip
    assert "attend_kernel" not in launched()


@pytest.mark.parametrize("config", [(128, 128, 2, 8), (128, 64, 3, 8), (64, 64, 3, 4)])
@pytest.mark.parametrize(("lengths", "contexts"), [([300, 129, 1], [0, 400, 77]), ([301], [99])])
def test_unified_attention_streams_keys_in_tiles(config, lengths, contexts):
    module = unified(False)
    module.config = lambda *_: config
    judge_sizes(module, "unified_attention", num_seqs=len(lengths), seq_lens=lengths, context_lens=contexts,
                **{**PAGED, "num_query_heads": 4, "num_kv_heads": 2})  # fmt: skip
    assert launched() == {"attend_kernel"}


@pytest.mark.parametrize("dim", [64, 72, 80, 128, 192, 256])
@pytest.mark.parametrize("heads", [2, 3])
def test_unified_attention_takes_prompts(dim, heads):
    lengths, contexts = [300, 129, 1, 64], [0, 200, 77, 13]
    judge_sizes(unified(True), "unified_attention", num_seqs=4, seq_lens=lengths, context_lens=contexts,
                **{**PAGED, "num_query_heads": heads, "num_kv_heads": 1, "head_size": dim})  # fmt: skip


def test_unified_attention_takes_small_pages():
    judge_sizes(unified(True), "unified_attention", num_seqs=2, seq_lens=[100, 70], context_lens=[30, 0],
                **{**PAGED, "num_query_heads": 4, "num_kv_heads": 2, "block_size": 8})  # fmt: skip


def test_unified_attention_searches_many_sequences():
    sizes = {**PAGED, "num_query_heads": 4, "num_kv_heads": 1, "head_size": 64, "context_lens": [5] * 300}
    judge_sizes(unified(True), "unified_attention", num_seqs=300, seq_lens=[1] * 290 + [70] * 10, **sizes)


@pytest.mark.parametrize("tma", [True, False])
def test_unified_attention_joins_the_parts_of_long_contexts(tma):
    judge_sizes(unified(tma), "unified_attention", num_seqs=5, seq_lens=[1] * 5,
                context_lens=[2000, 511, 777, 16, 1200],
                **{**PAGED, "num_query_heads": 28, "num_kv_heads": 4})  # fmt: skip
    assert any("join" in name for name in launched())


def test_all_configurations_of_unified_attention_agree_with_the_reference():
    def asked(k):
        group = k["num_query_heads"] // k["num_kv_heads"]
        return k["head_size"], sum(expand(k["seq_lens"])) * group, k["num_seqs"], k["num_kv_heads"]

    def smaller(k, choice):
        group = min(4, k["num_query_heads"] // k["num_kv_heads"])
        return {"num_seqs": 3, "seq_lens": [100, 1, 40], "context_lens": [30, 150, 0], "num_query_heads": group,
                "num_kv_heads": 1}  # fmt: skip

    judge_choices(unified(False), "unified_attention", asked, smaller)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "dtype"),
    [(4, 4, 128, "bf16"), (16, 2, 256, "bf16"), (10, 2, 128, "fp16"), (3, 3, 128, "bf16"), (4, 1, 128, "bf16")],
)
def test_corner_cases_of_paged_decoding_agree_with_the_reference(heads, kv_heads, dim, dtype):
    judge_corners(load_candidate("paged_attention_decode"), "paged_attention_decode", num_seqs=3, ctx_len=64,
                  num_query_heads=heads, num_kv_heads=kv_heads, head_size=dim, block_size=16, dtype=dtype)  # fmt: skip


@pytest.mark.parametrize("config", [(64, 4), (128, 8), (32, 4), (256, 8)])
def test_paged_decoding_streams_tiles(config):
    module = load_candidate("paged_attention_decode")
    module.config = lambda *_: config
    judge_sizes(module, "paged_attention_decode", num_seqs=3, ctx_len=150, num_query_heads=16, num_kv_heads=2)


@pytest.mark.parametrize("heads", [16, 24])
@pytest.mark.parametrize("config", [None, (96, 16, 32, 3, 4)])
def test_corner_cases_of_latent_decoding_agree_with_the_reference(heads, config):
    # The second kernel is launched early where there is a device to do so.
    module = load_candidate("mla_decode_attention", ("early = q.is_cuda", "early = True"))
    if config:
        module.config = lambda *_: config
    sizes = {"nhead": heads, "kv_lora_rank": 128, "qk_rope_head_dim": 64}
    judge_corners(module, "mla_decode_attention", sizes, batch_size=3, ctx_len=40, **sizes)


def test_latent_decoding_takes_other_ropes():
    sizes = {"nhead": 17, "kv_lora_rank": 128, "qk_rope_head_dim": 48}
    judge_sizes(
        load_candidate("mla_decode_attention"), "mla_decode_attention", sizes, batch_size=2, ctx_len=70, **sizes
    )


@pytest.mark.slow
def test_all_configurations_of_latent_decoding_agree_with_the_reference():
    module = load_candidate("mla_decode_attention", ("early = q.is_cuda", "early = True"))
    judge_choices(module, "mla_decode_attention",
                  lambda k: (k["batch_size"] * k["ctx_len"], k["batch_size"], k["nhead"]),
                  lambda k, choice: {"batch_size": 2, "ctx_len": choice[0] + 9})  # fmt: skip
