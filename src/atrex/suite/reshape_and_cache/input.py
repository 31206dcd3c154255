"""Inputs of reshape_and_cache: a filled cache, scattered pages entered midway, padding tokens among the others."""

from collections.abc import Callable

import torch

from atrex.suite.draw import mixed_rows

Inputs = dict[str, torch.Tensor]

SPARE_PAGES = 16
DECODING = 16  # one token in so many is a sequence's next one, alone in its page; the others follow one another


def make_inputs(shape: list[int], block_size: int, slots: torch.Tensor | None = None) -> Inputs:
    """key, value [tokens, heads, d] bf16, key_cache, value_cache [pages, block_size, heads, d] bf16,
    slot_mapping [tokens] int64. `shape` is [tokens, heads, d]; one token in 16 is padding (slot -1).

    The seed permutes pages, tokens and which of them are padding; `slots` replaces the drawn ones.
    """
    tokens, heads, size = shape
    pages = _pages(tokens, block_size)

    def rows(count: int) -> torch.Tensor:
        return mixed_rows(count, heads * size, torch.bfloat16, octaves=2.0)

    return {
        "key": rows(tokens).view(tokens, heads, size),
        "value": rows(tokens).view(tokens, heads, size),
        "key_cache": rows(pages * block_size).view(pages, block_size, heads, size),
        "value_cache": rows(pages * block_size).view(pages, block_size, heads, size),
        "slot_mapping": _slots(tokens, block_size) if slots is None else slots.to(torch.int64),
    }


def corner_cases(shape: list[int], block_size: int) -> dict[str, Callable[[], Inputs]]:
    """One token; nothing but padding; a page filled to its end; the cache's first and last slot; odd negative slots."""
    heads, size = shape[1:]

    def drawn(slots: list[int]) -> Inputs:
        return make_inputs([len(slots), heads, size], block_size, torch.tensor(slots))

    def last(tokens: int) -> int:
        return _pages(tokens, block_size) * block_size - 1

    return {
        "one_token": lambda: drawn([block_size + 3]),
        "all_padding": lambda: drawn([-1] * 5),
        "full_page": lambda: drawn([*range(2 * block_size, 3 * block_size)]),
        "first_and_last_slot": lambda: drawn([last(3), -1, 0]),
        "negative_slots": lambda: drawn([-block_size, 7, -(2**40), block_size]),
    }


def _pages(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size) + tokens // DECODING + SPARE_PAGES


def _slots(tokens: int, block_size: int) -> torch.Tensor:
    """Distinct slots in scattered pages, and -1. The last page stays free, so that a write to slot -1 shows."""
    written = tokens - tokens // 16
    decoding = written // DECODING
    following = written - decoding
    order = torch.randperm(_pages(tokens, block_size) - 1)
    place = torch.arange(following) + block_size // 2
    chunk = order[place // block_size] * block_size + place % block_size
    alone = order[len(order) - decoding :] * block_size + torch.randint(block_size, (decoding,))
    slots = torch.full((tokens,), -1, dtype=torch.int64)
    slots[torch.randperm(tokens)[:written]] = torch.cat([chunk, alone])
    return slots
