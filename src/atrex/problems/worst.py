"""Track the worst element over chunks on the device, and bring it to the host once."""

from __future__ import annotations

from collections.abc import Iterator

import torch

# Elements widened to float64 at a time. A chunk takes about ten temporaries of eight bytes an element: 1.3 GB on a GPU,
# while on a CPU smaller chunks stay near the last-level cache.
_CHUNK = {"cuda": 2**24, "cpu": 2**17}


def row_chunks(rows: int, cols: int, device: torch.device) -> Iterator[slice]:
    """Slices that cover `rows` rows of `cols` elements, at least one row each."""
    step = max(1, _CHUNK.get(device.type, 2**24) // max(cols, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def rows_of(tensor: torch.Tensor) -> torch.Tensor:
    """[rows, last dim] view (a copy where the layout needs one); a 0-d tensor is one row of one element."""
    return tensor.reshape(-1, tensor.shape[-1]) if tensor.dim() else tensor.reshape(1, 1)


class Worst:
    """The largest error / bound seen, with its flat index, error, bound and the rule that it broke or met."""

    def __init__(self) -> None:
        self._details: list[str] = []
        self._found: list[torch.Tensor] = []

    def add(
        self,
        detail: str,
        ratio: torch.Tensor,
        error: torch.Tensor,
        bound: torch.Tensor,
        where: int | torch.Tensor = 0,
    ) -> None:
        """Take the maximum of a chunk. `ratio`, `error`, `bound` have one shape.

        `where` is the flat index, in the whole tensor, of the chunk's first element, or of each of its elements. A NaN
        ratio counts as infinite: nothing that cannot be compared passes.
        """
        flat = torch.nan_to_num(ratio.reshape(-1).to(torch.float64), nan=torch.inf, posinf=torch.inf)
        top, at = flat.max(0)
        self._details.append(detail)
        index = where.reshape(-1)[at] if isinstance(where, torch.Tensor) else at + where
        values = (top, index, error.reshape(-1)[at], bound.reshape(-1)[at])
        # float64 holds flat indices exactly up to 2**53.
        self._found.append(torch.stack([v.to(torch.float64) for v in values]))

    def read(self) -> tuple[float, int, float, float, str]:
        """(ratio, flat index, error, bound, detail) of the worst element. Synchronizes with the device."""
        found = torch.stack(self._found).cpu()
        best = int(found[:, 0].argmax())
        ratio, index, error, bound = found[best].tolist()
        return ratio, int(index), error, bound, self._details[best]
