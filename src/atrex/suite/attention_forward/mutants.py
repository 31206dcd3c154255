"""Wrong and right attention_forward kernels for mutation testing."""

import torch

_SOFTMAX = "weights = torch.softmax(queries @ keys.transpose(1, 2), dim=-1)"
WRONG = {
    "scale left out": (" * q.shape[2] ** -0.5", ""),
    "scale 10 % off": ("* q.shape[2] ** -0.5", "* 1.1 * q.shape[2] ** -0.5"),
    "causal": (
        _SOFTMAX,
        "logits = queries @ keys.transpose(1, 2)\n"
        "                place = torch.arange(rows.start, rows.stop, device=q.device)[:, None] - first\n"
        "                later = torch.arange(end - start, device=q.device) > place\n"
        "                weights = torch.softmax(logits.masked_fill(later, float('-inf')), dim=-1)",
    ),
    "last key left out": (
        _SOFTMAX,
        "logits = queries @ keys.transpose(1, 2)\n"
        "                logits[..., end - start - 1 if end - start > 1 else end :] = float('-inf')\n"
        "                weights = torch.softmax(logits, dim=-1)",
    ),
    "mean of the values": (
        _SOFTMAX,
        _SOFTMAX + "\n                weights = torch.full_like(weights, 1 / (end - start))",
    ),
    "the largest weight alone": (
        _SOFTMAX,
        _SOFTMAX + "\n                weights = (weights == weights.amax(-1, keepdim=True)).to(acc)",
    ),
    "not normalized": (
        _SOFTMAX,
        "logits = queries @ keys.transpose(1, 2)\n"
        "                weights = torch.exp(logits - logits.amax(-1, keepdim=True))",
    ),
    "heads shifted by one": ("(weights @ values).transpose(0, 1)", "(weights @ values.roll(1, 0)).transpose(0, 1)"),
    "keys within the queries' bounds": (
        "bounds_q, bounds_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()",
        "bounds_q = bounds_k = cu_seqlens_q.tolist()",
    ),
    "padding of the head dimension read": ("queries @ keys.transpose(1, 2)", "queries[..., :-8] @ keys[..., :-8].mT"),
}
SURVIVORS = {
    "causal": "the same thing for one token",
    "last key left out": "the same thing for one token",
    "mean of the values": "the same thing for one token",
    "the largest weight alone": "the same thing for one token",
    "not normalized": "the same thing for one token",
    "scale left out": "the same thing for one token",
    "scale 10 % off": "the same thing for one token",
    "padding of the head dimension read": "the same thing for one token",
}


class _BySdpa(torch.nn.Module):
    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        out = torch.zeros_like(q)
        for s in range(len(cu_seqlens_q) - 1):
            rows = slice(int(cu_seqlens_q[s]), int(cu_seqlens_q[s + 1]))
            keys = slice(int(cu_seqlens_k[s]), int(cu_seqlens_k[s + 1]))
            parts = (x.float().transpose(0, 1) for x in (q[rows], k[keys], v[keys]))
            out[rows] = torch.nn.functional.scaled_dot_product_attention(*parts).transpose(0, 1).to(q.dtype)
        return out


class _WeightsRounded(_BySdpa):
    """Head by head, in runs of queries; probabilities in the operands' dtype, as tensor cores take them."""

    RUN = 4096

    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        out = torch.zeros_like(q)
        for s in range(len(cu_seqlens_q) - 1):
            keys = slice(int(cu_seqlens_k[s]), int(cu_seqlens_k[s + 1]))
            for top in range(int(cu_seqlens_q[s]), int(cu_seqlens_q[s + 1]), self.RUN):
                rows = slice(top, min(top + self.RUN, int(cu_seqlens_q[s + 1])))
                for head in range(q.shape[1]):
                    logits = q[rows, head].float() @ k[keys, head].float().T * q.shape[2] ** -0.5
                    weights = torch.softmax(logits, -1).to(q.dtype).float()
                    out[rows, head] = (weights @ v[keys, head].float()).to(q.dtype)
        return out


RIGHT = {"torch's own": _BySdpa, "probabilities rounded": _WeightsRounded}
