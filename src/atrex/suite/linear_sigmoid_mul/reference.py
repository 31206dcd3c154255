"""A gate from a linear layer and a sigmoid, multiplied on."""

import torch
from torch import nn


class Model(nn.Module):
    """out = sigmoid(hidden_states @ weight^T + bias) * post_mul_mat; at least float32 inside.

    hidden_states [tokens, hidden], weight [features, hidden], bias [features], post_mul_mat [tokens, columns] with
    columns equal to features, or any number of columns gated by one feature -> out like post_mul_mat.
    """

    def forward(
        self, hidden_states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, post_mul_mat: torch.Tensor
    ) -> torch.Tensor:
        acc = torch.promote_types(hidden_states.dtype, torch.float32)
        logits = torch.addmm(bias.to(acc), hidden_states.to(acc), weight.to(acc).T)
        return (torch.sigmoid(logits) * post_mul_mat.to(acc)).to(hidden_states.dtype)
