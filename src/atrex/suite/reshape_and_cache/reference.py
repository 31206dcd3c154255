"""Write new keys and values into a paged cache."""

import torch
from torch import nn


class Model(nn.Module):
    """cache[slot // page, slot % page] = row, for every token whose slot is not negative.

    key, value [tokens, heads, d]; key_cache, value_cache [pages, page, heads, d]; slot_mapping [tokens] int64: the
    place of a token counted in tokens over the whole cache, distinct, or negative for padding, which is skipped.
    An implementation updates key_cache and value_cache in place and returns nothing; this reference leaves its operands
    alone and returns {"key_cache", "value_cache"} as they should be afterwards.
    """

    def forward(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        tokens = torch.nonzero(slot_mapping >= 0).squeeze(-1)
        slots = slot_mapping[tokens]

        def written(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
            return cache.flatten(0, 1).index_copy(0, slots, rows[tokens]).view(cache.shape)

        return {"key_cache": written(key_cache, key), "value_cache": written(value_cache, value)}
