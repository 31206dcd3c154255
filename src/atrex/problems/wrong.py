"""Outputs that a sound problem must reject, and one that it must accept, made from what the reference returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from atrex.problems.metadata import Compare, ExactCompare, FloatCompare, Fp8Compare
from atrex.problems.worst import rows_of


def wrong_outputs(
    inputs: Mapping[str, torch.Tensor], output: torch.Tensor, live: int | None = None
) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Name and maker of each wrong version of one output: zero, its mean, copies of inputs, a dropped last tile.

    Of a one-dimensional output of which only the first `live` entries mean anything, the tile is their last.
    """
    yield "zero", lambda: torch.zeros_like(output)
    if output.numel() > 1:  # a single element is its own mean
        yield "constant", lambda: torch.full_like(output, _mean(output))
    for name, tensor in inputs.items():
        cut = _cut(tensor, output)
        if cut is not None:
            yield f"copy of input {name}", lambda cut=cut: cut.to(output.dtype).contiguous()
    yield "dropped last rows", lambda: _dropped(output, live, rows=True)
    yield "dropped last columns", lambda: _dropped(output, live, rows=False)


def honest_output(output: torch.Tensor, rule: Compare | None, expected: torch.Tensor | None = None) -> torch.Tensor:
    """The output of a kernel that rounds one intermediate more than the reference: uniform relative noise, rounded.

    The noise is that of rounding an intermediate of unknown mantissa: half a unit in the last place, which is eps / 2
    of a mantissa of one and half of that of nearly two. For fp32 outputs that may be bfloat16 inside (`rms_floor`), it
    is 1.2 times that floor, whose RMS is 0.7 of it: rows ruled by a few large elements vary around that. What is
    copied or quantized stays: another rounding there is a matter of each operator, and of its tests. Copied is what is
    equal to the float64 oracle `expected`, where that is given. Draws from the caller's random state.
    """
    if not output.is_floating_point() or isinstance(rule, (ExactCompare, Fp8Compare)):
        return output
    size = torch.finfo(output.dtype).eps / 2
    if isinstance(rule, FloatCompare):
        size = max(size, 1.2 * rule.rms_floor)
    noise = torch.empty(output.shape, dtype=torch.float32, device=output.device).uniform_(-size, size)
    if size == torch.finfo(output.dtype).eps / 2:
        noise.div_(torch.rand_like(noise).exp2_())
    if expected is not None:
        noise.masked_fill_(output == expected, 0)
    return (output.to(torch.float32) * noise.add_(1)).to(output.dtype)


def altered_operand(tensor: torch.Tensor, redrawn: torch.Tensor) -> torch.Tensor:
    """A valid other value of an operand: the one of another seed, or, where that is the same, one that differs.

    A length or count that no seed changes is halved (at least one), which stays in range; of indices that are all 0 or
    1, each becomes the other.
    """
    if tensor.shape == redrawn.shape and not torch.equal(_bytes(tensor), _bytes(redrawn)):
        return redrawn
    if tensor.is_floating_point():
        return (tensor.to(torch.float32) * 1.5 + 0.25).to(tensor.dtype)
    if tensor.dtype == torch.bool:
        return ~tensor
    if not bool((tensor > 1).any()):
        return torch.where(tensor >= 0, 1 - tensor, tensor)
    return torch.where(tensor > 1, tensor // 2, tensor)


def same_tensors(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    """Whether two sets of inputs hold the same bytes under the same names."""
    return left.keys() == right.keys() and all(
        t.shape == right[name].shape and t.dtype == right[name].dtype and torch.equal(_bytes(t), _bytes(right[name]))
        for name, t in left.items()
    )


def _mean(output: torch.Tensor) -> float:
    if output.dtype == torch.bool:
        return float(output.float().mean() < 0.5)
    if output.element_size() == 1:
        return float(output[:1024].to(torch.float32).mean())  # fp8 has no reductions
    mean = float(output.mean(dtype=torch.float64))
    return mean if output.is_floating_point() else round(mean)


def _cut(tensor: torch.Tensor, output: torch.Tensor) -> torch.Tensor | None:
    if tensor.dim() == output.dim() and all(t >= o for t, o in zip(tensor.shape, output.shape, strict=True)):
        return tensor[tuple(slice(size) for size in output.shape)]
    return tensor.reshape(output.shape) if tensor.numel() == output.numel() else None


def _dropped(output: torch.Tensor, live: int | None, rows: bool) -> torch.Tensor:
    made = output.clone()
    table = rows_of(made if live is None else made[:live])
    lost = -1 if not output.is_floating_point() and output.dtype != torch.bool else 0
    along = table.shape[0 if rows else 1]
    start = along - max(1, along // 8)
    table[slice(start, None) if rows else (slice(None), slice(start, None))] = lost
    return made


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    # Compared as bytes: float8 has no equality on every backend, and NaN equals itself here.
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
