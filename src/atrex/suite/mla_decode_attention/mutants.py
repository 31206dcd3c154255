"""Wrong and right mla_decode_attention kernels for mutation testing."""

import torch

WRONG = {
    "rotary part left out": (
        "q[sequence].to(acc) @ tokens.T",
        "q[sequence][:, : self.rank].to(acc) @ tokens[:, : self.rank].T",
    ),
    "scale of the latent part": ("(kv_lora_rank + qk_rope_head_dim) ** -0.5", "kv_lora_rank**-0.5"),
    "scale left out": ("* self.scale", "* 1.0"),
    "values from the rotary end": ("tokens[:, : self.rank]", "tokens[:, -self.rank :]"),
    "last token left out": ("tokens = kv_cache[start:end, 0]", "tokens = kv_cache[start : max(start + 1, end - 1), 0]"),
    "one token too many": ("tokens = kv_cache[start:end, 0]", "tokens = kv_cache[start : end + 1, 0]"),
    "rows past the context times zero": (
        "tokens = kv_cache[start:end, 0].to(acc)\n"
        "            weights = torch.softmax(q[sequence].to(acc) @ tokens.T * self.scale, dim=-1)",
        "tokens = kv_cache[start : end + 16, 0].to(acc)\n"
        "            logits = q[sequence].to(acc) @ tokens.T * self.scale\n"
        "            logits[:, length:] = float('-inf')\n"
        "            weights = torch.softmax(logits, dim=-1)",
    ),
    "equal lengths": (
        "for sequence, length in enumerate(seq_lens.tolist()):",
        "for sequence, length in enumerate([int(seq_lens.sum()) // len(seq_lens)] * len(seq_lens)):",
    ),
    "tokens of the first sequence": ("start, end = end, end + length", "start, end = 0, length"),
    "heads shifted by one": ("out[sequence] = weights", "out[sequence] = weights.roll(1, 0)"),
    "not normalized": (
        "weights = torch.softmax(q[sequence].to(acc) @ tokens.T * self.scale, dim=-1)",
        "weights = torch.exp(q[sequence].to(acc) @ tokens.T * self.scale)",
    ),
}
SURVIVORS = {
    "equal lengths": "the same thing where there is one sequence",
    "tokens of the first sequence": "the same thing where there is one sequence",
}


class _BySdpa(torch.nn.Module):
    def __init__(self, nhead, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        self.rank = kv_lora_rank

    def forward(self, q, kv_cache, seq_lens):
        out, first = [], 0
        for s, length in enumerate(seq_lens.tolist()):
            tokens = kv_cache[first : first + length, 0].float()[None]
            first += length
            attend = torch.nn.functional.scaled_dot_product_attention
            out.append(attend(q[s].float()[:, None], *(tokens.expand(q.shape[1], -1, -1),) * 2)[:, 0, : self.rank])
        return torch.stack(out).to(q.dtype)


class _TwoSplits(_BySdpa):
    """The context in two parts, merged by their log-sum-exp, as split-KV kernels do it."""

    def forward(self, q, kv_cache, seq_lens):
        out, first = torch.empty(*q.shape[:2], self.rank, dtype=q.dtype, device=q.device), 0
        for s, length in enumerate(seq_lens.tolist()):
            tokens = kv_cache[first : first + length, 0].float()
            first += length
            logits = q[s].float() @ tokens.T * q.shape[-1] ** -0.5
            parts = [slice(0, (length + 1) // 2), slice((length + 1) // 2, length)]
            sums = [torch.logsumexp(logits[:, part], -1, keepdim=True) for part in parts]
            whole = torch.logaddexp(*sums)
            merged = [
                torch.exp(total - whole) * (torch.softmax(logits[:, part], -1) @ tokens[part, : self.rank])
                for part, total in zip(parts, sums, strict=True)
                if part.start < part.stop
            ]
            out[s] = sum(merged).to(q.dtype)
        return out


RIGHT = {"torch's own": _BySdpa, "in two splits": _TwoSplits}
