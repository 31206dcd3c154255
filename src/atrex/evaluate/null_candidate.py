"""A forward that does nothing: what the protocol and the way to a worker cost by themselves."""

import torch


class Model(torch.nn.Module):
    def forward(self, *operands):
        return torch.empty(1, device=operands[0].device)
