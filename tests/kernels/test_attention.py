"""Attention of kernels/h200: whole sequences, paged caches, latents."""

import pytest

from atrex.suite.lengths import expand
from tests.kernels import machine
from tests.kernels.emulator import load_candidate
from tests.kernels.judging import choices, judge, judge_choices, judge_corners, judge_sizes
from tests.suite.cases import shape_of

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


@pytest.mark.parametrize(
    ("units", "heads", "queries", "keys", "dim"),
    [
        (3, 2, 700, None, 72),  # more blocks than programs: the last, incomplete wave shares its keys
        (7, 1, 192, 1000, 72),
        (4, 1, 64, 640, 64),  # one block for all programs
        (13, 1, 130, 1100, 72),
        (5, 3, 300, 500, 72),
        (4, 2, 500, 257, 40),
    ],
)
def test_programs_of_attention_forward_that_share_keys_agree_with_the_reference(units, heads, queries, keys, dim):
    """One sequence on a machine of few multiprocessors: its last blocks are cut by keys and merged."""
    module = load_candidate("attention_forward")
    choice = module.config(65556, 1, 16, 72)
    assert choice["SPLIT"] and choice["GROUPS"] == 3
    module.UNITS, module.config, module.shared = units, lambda *_: choice, lambda blocks, _: blocks % units
    more = {} if keys is None else {"key_lens": [keys]}
    judge_sizes(module, "attention_forward", seed=queries, num_heads=heads, head_dim=dim, seq_lens=[queries], **more)
    assert {name for name, _ in machine.stream().launches} == {"attention_forward_kernel", "merge"}


@pytest.mark.parametrize("dim", [72, 80])
def test_attention_forward_takes_head_sizes_with_any_warpgroups(dim):
    module = load_candidate("attention_forward")
    for queries in (276, 65556):
        choice = module.config(queries, 16, 4, dim)
        module.config, config = lambda *_, choice=choice: choice, module.config
        judge_sizes(module, "attention_forward", num_heads=1, head_dim=dim, seq_lens=LENGTHS)
        module.config = config


PAGED = {"num_query_heads": 16, "num_kv_heads": 4, "head_size": 128, "block_size": 16}


def unified():
    return load_candidate("unified_attention")


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
def test_corner_cases_of_unified_attention_agree_with_the_reference(sizes):
    judge_corners(unified(), "unified_attention", num_seqs=1, seq_lens=[1], **{**PAGED, **sizes})


def launched():
    return {name for name, _ in machine.stream().launches}


@pytest.mark.parametrize("chunks", [None, 3, 5])
@pytest.mark.parametrize(
    ("lengths", "contexts"), [([256, 256], None), ([256, 100, 1, 31], [0, 100, 255, 31]), ([40, 64, 65], [100, 0, 190])]
)
def test_unified_attention_keeps_short_sequences(lengths, contexts, chunks):
    module = unified()
    module.SMS = 2  # as if there were many heads
    if chunks:
        choice = (chunks, *module.batch_config(3, 1, 10)[1:])
        module.batch_config = lambda *_: choice
    judge_sizes(module, "unified_attention", num_seqs=len(lengths), seq_lens=lengths, context_lens=contexts,
                **{**PAGED, "num_query_heads": 10, "num_kv_heads": 1})  # fmt: skip
    assert launched() == {"batch_kernel"}


@pytest.mark.parametrize(("page", "dim"), [(1, 128), (8, 72), (24, 192), (16, 32)])
def test_unified_attention_takes_other_pages_and_heads(page, dim):
    judge_sizes(unified(), "unified_attention", num_seqs=3, seq_lens=[300, 129, 1], context_lens=[0, 100, 77],
                **{**PAGED, "num_query_heads": 4, "num_kv_heads": 2, "head_size": dim, "block_size": page})  # fmt: skip
    assert launched() == {"plain_kernel"}


@pytest.mark.parametrize("dim", [64, 72, 128, 256])
@pytest.mark.parametrize(("programs", "least"), [(1, 1), (3, 1), (7, 1), (40, 1), (9, 4)])
@pytest.mark.parametrize(
    ("lengths", "contexts", "heads", "kv_heads"),
    [([1, 1, 1], [300, 15, 700], 8, 2), ([2, 40, 1], [130, 600, 64], 3, 1), ([30], [200], 6, 2)],
)
def test_unified_attention_shares_out_tiles(dim, programs, least, lengths, contexts, heads, kv_heads):
    module = unified()
    other = module.config(dim, 999)
    module.config = lambda *_: (programs, least, *other[2:])
    judge_sizes(module, "unified_attention", num_seqs=len(lengths), seq_lens=lengths, context_lens=contexts,
                **{**PAGED, "num_query_heads": heads, "num_kv_heads": kv_heads, "head_size": dim})  # fmt: skip
    assert "decode_kernel" in launched()


@pytest.mark.parametrize("dim", [64, 72, 80, 128, 192, 256])
@pytest.mark.parametrize("heads", [2, 3])
def test_unified_attention_takes_prompts(dim, heads):
    lengths, contexts = [300, 129, 1, 64], [0, 200, 77, 13]
    judge_sizes(unified(), "unified_attention", num_seqs=4, seq_lens=lengths, context_lens=contexts,
                **{**PAGED, "num_query_heads": heads, "num_kv_heads": 1, "head_size": dim})  # fmt: skip


def test_unified_attention_searches_many_sequences():
    sizes = {**PAGED, "num_query_heads": 4, "num_kv_heads": 1, "head_size": 64, "context_lens": [5] * 300}
    judge_sizes(unified(), "unified_attention", num_seqs=300, seq_lens=[1] * 290 + [70] * 10, **sizes)


def test_unified_attention_joins_the_parts_of_long_contexts():
    judge_sizes(unified(), "unified_attention", num_seqs=5, seq_lens=[1] * 5,
                context_lens=[2000, 511, 777, 16, 1200],
                **{**PAGED, "num_query_heads": 28, "num_kv_heads": 4})  # fmt: skip
    assert any("join" in name for name in launched())


@pytest.mark.parametrize("dim", [72, 128, 192, 256])
@pytest.mark.parametrize(("heads", "units"), [(2, 3), (3, 2), (4, 1)])
@pytest.mark.parametrize(("length", "context"), [(300, 0), (200, 77), (64, 400)])
def test_unified_attention_stays_for_a_prompt(dim, heads, units, length, context):
    module = unified()
    module.SMS = units
    judge_sizes(module, "unified_attention", num_seqs=1, seq_lens=[length], context_lens=[context],
                **{**PAGED, "num_query_heads": heads, "num_kv_heads": 1, "head_size": dim})  # fmt: skip
    assert launched() == {"prompt_kernel"}


@pytest.mark.parametrize(("dim", "heads", "page"), [(128, 5, 16), (72, 4, 16), (256, 2, 32)])
@pytest.mark.parametrize("units", [2, 132])
def test_unified_attention_takes_prompts_among_decoding(dim, heads, page, units):
    module = unified()
    module.SMS = units
    lengths, contexts = [1, 70, 1, 130, 0, 3], [600, 0, 15, 40, 0, 99]
    judge_sizes(module, "unified_attention", num_seqs=6, seq_lens=lengths, context_lens=contexts,
                **{**PAGED, "num_query_heads": heads, "num_kv_heads": 1, "head_size": dim,
                   "block_size": page})  # fmt: skip
    assert launched() == {"decode_kernel", "prompt_kernel", "join_kernel"}


@pytest.mark.parametrize("seed", range(8))
def test_unified_attention_keeps_items_of_fewer_blocks_than_warpgroups(seed):
    module = unified()
    module.SMS = 3
    judge(module, "unified_attention", shape_of("unified_attention", num_seqs=2, seq_lens=[256, 200],
          **{**PAGED, "num_query_heads": 2, "num_kv_heads": 2}), seed=seed)  # fmt: skip
    assert launched() == {"batch_kernel"}


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "dtype"),
    [(4, 4, 128, "bf16"), (16, 2, 256, "bf16"), (10, 2, 128, "fp16"), (3, 3, 128, "bf16"), (4, 1, 128, "bf16")],
)
def test_corner_cases_of_paged_decoding_agree_with_the_reference(heads, kv_heads, dim, dtype):
    judge_corners(load_candidate("paged_attention_decode"), "paged_attention_decode", num_seqs=3, ctx_len=64,
                  num_query_heads=heads, num_kv_heads=kv_heads, head_size=dim, block_size=16, dtype=dtype)  # fmt: skip


@pytest.mark.parametrize("config", [(64, 4), (128, 8), (32, 4), (32, 2), (256, 8)])
@pytest.mark.parametrize("units", [2, 132])
def test_paged_decoding_streams_tiles(config, units):
    module = load_candidate("paged_attention_decode")
    module.SMS, module.config = units, lambda *_: config  # with few multiprocessors a program has all columns
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
