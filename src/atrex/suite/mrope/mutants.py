"""Wrong and right mrope kernels for mutation testing."""

import torch

WRONG = {
    "not rotated": ("return torch.cat([turned, rest], dim=-1).view(x.shape).to(x.dtype)", "return x.clone()"),
    "time axis alone": ("axis = self.axis(q.device)", "axis = 0 * self.axis(q.device)"),
    "height and width exchanged": ("axis = self.axis(q.device)", "axis = ((3 - self.axis(q.device)) % 3)"),
    "sections off by one": ("frequency >= first).long()", "frequency > first).long()"),
    "turned backwards": (
        "first * c - second * s, second * c + first * s",
        "first * c + second * s, second * c - first * s",
    ),
    "keys not rotated": ('"k": rotated(k)', '"k": k.clone()'),
    "queries not rotated": ('"q": rotated(q)', '"q": q.clone()'),
    "pairs of the other style": ("if self.neox:", "if not self.neox:"),
    "angles of the token before": (".transpose(0, 1) for table", ".transpose(0, 1).roll(1, 0) for table"),
    "sine left out": ("first * c - second * s, second * c + first * s", "first * c, second * c"),
    "interleaving the other way": ("if self.interleaved:", "if not self.interleaved:"),
}
SURVIVORS = {
    "sections off by one": "the same thing where the axes are interleaved",
    "angles of the token before": "the same thing where there is one token",
}


class _Complex(torch.nn.Module):
    """Rotation as a complex product, axis by axis."""

    def __init__(self, head_size, rotary_dim, mrope_section, mrope_interleaved, is_neox_style):
        super().__init__()
        self.size, self.rotary, self.section = head_size, rotary_dim, mrope_section
        self.interleaved, self.neox = mrope_interleaved, is_neox_style

    def table(self, table):
        axes = []
        for j in range(self.rotary // 2):
            if self.interleaved:
                axes.append(j % 3 if j < 3 * self.section[j % 3] else 0)
            else:
                axes.append(0 if j < self.section[0] else 1 if j < self.section[0] + self.section[1] else 2)
        return torch.stack([table[axis, :, j] for j, axis in enumerate(axes)], dim=-1).float()

    def forward(self, q, k, cos, sin):
        turn = torch.complex(self.table(cos), self.table(sin))[:, None]

        def rotated(x):
            heads = x.view(len(x), -1, self.size).float()
            part = heads[..., : self.rotary]
            pairs = part.unflatten(-1, (2, -1)).transpose(-1, -2) if self.neox else part.unflatten(-1, (-1, 2))
            turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
            flat = (turned.transpose(-1, -2) if self.neox else turned).flatten(-2)
            return torch.cat([flat, heads[..., self.rotary :]], dim=-1).view(x.shape).to(x.dtype)

        return {"q": rotated(q), "k": rotated(k)}


class _HalvesTurned(_Complex):
    """x cos + turned(x) sin over the whole head, with cosines of one and sines of zero past the rotary part."""

    def forward(self, q, k, cos, sin):
        def whole(table, rest):
            axes = self.table(table)
            wide = torch.cat([axes, axes], -1) if self.neox else axes.repeat_interleave(2, -1)
            return torch.nn.functional.pad(wide, (0, self.size - self.rotary), value=rest)[:, None]

        c, s = whole(cos, 1.0), whole(sin, 0.0)

        def turned(x):
            part, rest = x[..., : self.rotary], x[..., self.rotary :]
            if self.neox:
                part = torch.cat([-part[..., self.rotary // 2 :], part[..., : self.rotary // 2]], -1)
            else:
                part = torch.stack([-part[..., 1::2], part[..., 0::2]], -1).flatten(-2)
            return torch.cat([part, rest], -1)

        def rotated(x):
            heads = x.view(len(x), -1, self.size).float()
            return (heads * c + turned(heads) * s).view(x.shape).to(x.dtype)

        return {"q": rotated(q), "k": rotated(k)}


RIGHT = {"as complex numbers": _Complex, "halves turned": _HalvesTurned}
