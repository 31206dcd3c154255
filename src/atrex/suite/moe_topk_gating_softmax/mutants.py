"""Wrong and right moe_topk_gating_softmax kernels for mutation testing."""

import torch

_RETURN = 'return {"topk_weights": weights,'
WRONG = {
    "renormalized": (_RETURN, 'return {"topk_weights": weights / weights.sum(-1, keepdim=True),'),
    "logits as weights": (
        _RETURN,
        'return {"topk_weights": torch.gather(gating_output, -1, ids),',
    ),
    "ascending": (_RETURN, "weights, ids = weights.flip(-1), ids.flip(-1)\n        " + _RETURN),
    "the k smallest": ("sorted=True)", "sorted=True, largest=False)"),
    "the first k experts": (
        _RETURN,
        "ids = torch.arange(self.top_k, device=ids.device).expand_as(ids)\n"
        "        weights = torch.gather(self.scores(gating_output), -1, ids)\n        " + _RETURN,
    ),
    "one id twice": ('"topk_ids": ids', '"topk_ids": torch.cat([ids[:, :1], ids[:, :-1]], -1)'),
    "ids off by one": ('"topk_ids": ids', '"topk_ids": ((ids + 1) % gating_output.shape[-1])'),
    "sigmoid instead of softmax": (
        "torch.topk(self.scores(gating_output)",
        "torch.topk(torch.sigmoid(gating_output)",
    ),
    "softmax over the chosen alone": (
        _RETURN,
        "weights = torch.softmax(torch.gather(gating_output, -1, ids), -1)\n        " + _RETURN,
    ),
    "last expert never chosen": (
        "torch.topk(self.scores(gating_output)",
        "torch.topk(torch.nn.functional.pad(self.scores(gating_output)[:, :-1], (0, 1))",
    ),
}


class _Sorted(torch.nn.Module):
    """A whole sort, in which ties come in another order."""

    def __init__(self, top_k):
        super().__init__()
        self.top_k = top_k

    def forward(self, gating_output):
        shifted = gating_output - gating_output.amax(-1, keepdim=True)
        weights = shifted.exp()
        weights = weights / weights.sum(-1, keepdim=True)
        flipped, order = weights.flip(-1).sort(dim=-1, descending=True, stable=True)
        ids = gating_output.shape[-1] - 1 - order[:, : self.top_k]
        return {"topk_weights": flipped[:, : self.top_k].contiguous(), "topk_ids": ids.to(torch.int32)}


class _ByLogits(_Sorted):
    """Chooses by logit and exponentiates the chosen alone."""

    def forward(self, gating_output):
        chosen, ids = gating_output.topk(self.top_k, -1)
        weights = torch.exp(chosen - torch.logsumexp(gating_output, -1, keepdim=True))
        return {"topk_weights": weights, "topk_ids": ids.to(torch.int32)}


RIGHT = {"by a whole sort": _Sorted, "chosen by logit": _ByLogits}
