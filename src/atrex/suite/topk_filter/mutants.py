"""Wrong and right topk_filter kernels for mutation testing."""

import torch

_KTH = "kth = torch.topk(logits, min(self.top_k, logits.shape[-1]), dim=-1).values[:, -1:]"
WRONG = {
    "one too few": ("min(self.top_k, logits.shape[-1])", "min(self.top_k - 1, logits.shape[-1])"),
    "one too many": ("min(self.top_k, logits.shape[-1])", "min(self.top_k + 1, logits.shape[-1])"),
    "ties at the k-th dropped": ("logits < kth", "logits <= kth"),
    "zero instead of -inf": ("-torch.inf", "0.0"),
    "a large negative number instead of -inf": ("-torch.inf", "-1e30"),
    "nothing filtered": ("return logits.masked_fill(logits < kth, -torch.inf)", "return logits.clone()"),
    "the k smallest kept": ("logits < kth", "logits > -kth"),
    "threshold of the row before": ("values[:, -1:]", "values[:, -1:].roll(1, 0)"),
    "threshold by magnitude": (_KTH, _KTH.replace("torch.topk(logits,", "torch.topk(logits.abs(),")),
    "last column never kept": (
        "return logits.masked_fill(logits < kth, -torch.inf)",
        "out = logits.masked_fill(logits < kth, -torch.inf)\n        out[:, -1] = -torch.inf\n        return out",
    ),
    "first columns kept": ("logits < kth", "torch.arange(logits.shape[-1], device=logits.device) >= self.top_k"),
}
SURVIVORS = {"threshold of the row before": "the same thing where there is one row"}


class _BySort(torch.nn.Module):
    def __init__(self, top_k=50):
        super().__init__()
        self.top_k = top_k

    def forward(self, logits):
        k = min(self.top_k, logits.shape[-1])
        kth = logits.sort(dim=-1).values[:, -k].unsqueeze(-1)
        return torch.where(logits >= kth, logits, torch.full_like(logits, -torch.inf))


class _ByKthValue(_BySort):
    def forward(self, logits):
        k = min(self.top_k, logits.shape[-1])
        kth = logits.kthvalue(logits.shape[-1] - k + 1, dim=-1, keepdim=True).values
        return logits.masked_fill(~(logits >= kth), -torch.inf)


RIGHT = {"by a sort": _BySort, "by selection": _ByKthValue}
