"""Multimodal rotary embedding: each frequency turns by the position along one of three axes."""

import torch
from torch import nn


class Model(nn.Module):
    """Rotate pairs of q and k; frequency j takes its cosine and sine from axis a(j): time 0, height 1 or width 2.

    With mrope_section (s0, s1, s2), summing to rotary_dim / 2: a(j) is 0 for j < s0, 1 for the next s1, 2 for the last
    s2; interleaved, a(j) is j % 3 where j < 3 * section[j % 3], else 0. Neox style pairs j with j + rotary_dim / 2,
    the other 2j with 2j + 1; elements of a head past rotary_dim stay as they are.
    q [tokens, heads * d], k [tokens, kv_heads * d]; cos, sin [3, tokens, rotary_dim / 2] fp32.
    -> {"q", "k"} like q and k; at least float32 inside, rounded once.
    """

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        mrope_section: list[int],
        mrope_interleaved: bool,
        is_neox_style: bool,
    ) -> None:
        super().__init__()
        self.head_size = head_size
        self.rotary_dim = rotary_dim
        self.section = mrope_section
        self.interleaved = mrope_interleaved
        self.neox = is_neox_style

    def axis(self, device: torch.device) -> torch.Tensor:
        """[rotary_dim / 2] the axis of every frequency."""
        frequency = torch.arange(self.rotary_dim // 2, device=device)
        if self.interleaved:
            reach = 3 * torch.tensor(self.section, device=device)
            turn = frequency % 3
            return torch.where(frequency < reach[turn], turn, 0)
        first, second, _ = self.section
        return (frequency >= first).long() + (frequency >= first + second).long()

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        acc = torch.promote_types(q.dtype, torch.float32)
        axis = self.axis(q.device).expand(1, *cos.shape[1:])
        c, s = (table.to(acc).gather(0, axis).transpose(0, 1) for table in (cos, sin))

        def rotated(x: torch.Tensor) -> torch.Tensor:
            heads = x.view(len(x), -1, self.head_size).to(acc)
            turning, rest = heads.split([self.rotary_dim, self.head_size - self.rotary_dim], dim=-1)
            if self.neox:
                first, second = turning.chunk(2, dim=-1)
            else:
                first, second = turning[..., 0::2], turning[..., 1::2]
            pair = (first * c - second * s, second * c + first * s)
            turned = torch.cat(pair, dim=-1) if self.neox else torch.stack(pair, dim=-1).flatten(-2)
            return torch.cat([turned, rest], dim=-1).view(x.shape).to(x.dtype)

        return {"q": rotated(q), "k": rotated(k)}
