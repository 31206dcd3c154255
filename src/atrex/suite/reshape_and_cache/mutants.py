"""Wrong and right reshape_and_cache kernels for mutation testing."""

import torch

_WRITTEN = "return cache.flatten(0, 1).index_copy(0, slots, rows[tokens]).view(cache.shape)"
WRONG = {
    "slots ignored": ("slots = slot_mapping[tokens]", "slots = torch.arange(len(tokens), device=tokens.device)"),
    "padding not skipped": (
        "tokens = torch.nonzero(slot_mapping >= 0).squeeze(-1)",
        "slot_mapping = slot_mapping % key_cache.flatten(0, 1).shape[0]\n"
        "        tokens = torch.arange(len(key), device=key.device)",
    ),
    "slot 0 taken for padding": ("slot_mapping >= 0", "slot_mapping > 0"),
    "last token left out": (
        "slots = slot_mapping[tokens]",
        "tokens = tokens[:-1]\n        slots = slot_mapping[tokens]",
    ),
    "slots off by one": (
        "slots = slot_mapping[tokens]",
        "slots = (slot_mapping[tokens] + 1) % key_cache.flatten(0, 1).shape[0]",
    ),
    "other rows cleared": (_WRITTEN, _WRITTEN.replace("cache.flatten", "torch.zeros_like(cache).flatten")),
    "key and value exchanged": (
        '{"key_cache": written(key_cache, key), "value_cache": written(value_cache, value)}',
        '{"key_cache": written(key_cache, value), "value_cache": written(value_cache, key)}',
    ),
    "values not written": ('"value_cache": written(value_cache, value)', '"value_cache": value_cache'),
    "heads reversed": ("rows[tokens]", "rows[tokens].flip(1)"),
    "page and slot exchanged": (
        "slots = slot_mapping[tokens]",
        "pages, page = key_cache.shape[:2]\n        slots = slot_mapping[tokens]\n"
        "        slots = slots % page * pages + slots // page",
    ),
}
SURVIVORS = {
    "padding not skipped": "the same thing where there is no padding: a single token",
    "slot 0 taken for padding": "the same thing where no token is written to slot 0",
    "page and slot exchanged": "the same thing in a cache of one page",
}


class _ByMask(torch.nn.Module):
    """Asks of every place of the cache which token it gets."""

    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        places = key_cache.shape[0] * key_cache.shape[1]
        token = torch.full((places + 1,), -1, dtype=torch.int64, device=key.device)
        live = torch.where(slot_mapping < 0, places, slot_mapping)
        token[live] = torch.arange(len(key), device=key.device)
        token = token[:places]

        def written(cache, rows):
            flat = cache.flatten(0, 1)
            return torch.where((token >= 0)[:, None, None], rows[token.clamp(min=0)], flat).view(cache.shape)

        return {"key_cache": written(key_cache, key), "value_cache": written(value_cache, value)}


class _InPlace(torch.nn.Module):
    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        caches = {"key_cache": key_cache.clone(), "value_cache": value_cache.clone()}
        live = slot_mapping >= 0
        pages, slots = slot_mapping[live] // key_cache.shape[1], slot_mapping[live] % key_cache.shape[1]
        for name, rows in (("key_cache", key), ("value_cache", value)):
            caches[name][pages, slots] = rows[live]
        return caches


RIGHT = {"by place": _ByMask, "in place": _InPlace}
