"""Semantic work of moe_align_block_size: no arithmetic; every id read once, the entries in use written once.

How many blocks are in use follows from the slots of each expert, which input_kwargs fix (`expert_counts`); the
published figure is that of one random draw. Capacity beyond the blocks in use costs no bytes.
"""

from atrex.roofline.work import Work
from atrex.suite.experts import expert_counts

# Blocks of 128 slots in use in the published draw, by tokens.
DRAWN = {1: 8, 520: 128, 1019: 128, 2044: 186, 3936: 292, 8192: 573}


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, experts, top_k = (input_kwargs[name] for name in ("token_count", "num_experts", "top_k"))
    block = init_kwargs["block_size"]
    blocks = sum(-(-count // block) for count in expert_counts(tokens, experts, top_k))
    return Work(bytes_read=4 * tokens * top_k, bytes_written=4 * (blocks * block + blocks + 1))


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release counts the blocks that one uniform draw left in use."""
    blocks = DRAWN[input_kwargs["token_count"]]
    written = 4 * (blocks * init_kwargs["block_size"] + blocks + 1)
    return 0, work(init_kwargs, input_kwargs).bytes_read, written
