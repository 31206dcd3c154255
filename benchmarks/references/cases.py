"""Which inputs a reference is checked on: the smallest published shapes, one of each branch, and all corner cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from benchmarks.references.registry import Case

from atrex.problems.model import Problem, Shape

SEED = 20
PUBLISHED = 2
BRANCHES = 5
LIMIT_FLOPS = {"cpu": 3e9, "cuda": 2e12}  # of one shape
LIMIT_BYTES = {"cpu": 5e7, "cuda": 2e10}

# Sizes: two shapes that differ only in these take the same branches of any implementation.
_SIZES = {
    "token_count", "num_tokens", "total_tokens", "rows", "seq_len", "num_seqs", "seq_lens", "ctx_len", "m", "n",
    "k", "shape", "hidden_size", "intermediate_size", "num_experts", "state_count", "batch_size", "num_heads",
    "head_num", "num_query_heads", "num_q_heads", "num_k_heads", "num_v_heads", "nhead", "out_features",
    "columns", "context_lens", "padding", "dim", "kv_head_num", "num_kv_heads",
}  # fmt: skip


def chosen_shapes(problem: Problem, device: torch.device) -> list[Shape]:
    """Published shapes from the smallest on, then the smallest of each other branch, under the device's limits."""
    found = [s for s in [*problem.shapes.values(), *problem.held_out.values()] if _cost(problem, s, device) is not None]
    found.sort(key=lambda s: _cost(problem, s, device) or 0)
    published = [s for s in found if _origin(problem, s) == "published"][:PUBLISHED]
    seen = {_branch(s) for s in published}
    others = []
    for shape in found:
        if _branch(shape) not in seen:
            seen.add(_branch(shape))
            others.append(shape)
    # With few branches, the smallest shapes of ours and held-out ones fill up: they have ragged tails.
    spare = [s for s in found if _origin(problem, s) != "published" and s not in others]
    return (published + others + spare)[: max(len(published) + min(len(others), BRANCHES), 4)]


def cases(problem: Problem, device: torch.device) -> Iterator[Case]:
    """The cases of an operator, one at a time so that only one lies in memory."""
    shapes = chosen_shapes(problem, device)
    for shape in shapes:
        yield Case(problem, shape, shape.id, problem.make_inputs(shape, SEED, device))
    if not shapes:
        return
    smallest = min(shapes, key=lambda s: _cost(problem, s, device) or 0)
    for shape in _corner_shapes(problem, shapes, smallest):
        for name, make in problem.corner_cases(shape, SEED, device).items():
            yield Case(problem, shape, f"{shape.id}/{name}", make())


def fresh(case: Case) -> Case:
    """The case with inputs of its own, which an implementation may overwrite."""
    return dataclasses.replace(case, inputs={name: t.clone() for name, t in case.inputs.items()})


def _corner_shapes(problem: Problem, shapes: list[Shape], smallest: Shape) -> list[Shape]:
    """The smallest shape, and the smallest of each other set of constructor arguments that are no sizes."""
    found = {str(_meaning(smallest)): smallest}
    for shape in shapes:
        found.setdefault(str(_meaning(shape)), shape)
    return list(found.values())


def _meaning(shape: Shape) -> list[tuple[str, object]]:
    return sorted((k, v) for k, v in shape.init_kwargs.items() if k not in _SIZES)


def _branch(shape: Shape) -> str:
    kwargs = shape.input_kwargs
    heads = next((kwargs[k] for k in ("num_query_heads", "num_heads", "head_num") if k in kwargs), None)
    kv_heads = next((kwargs[k] for k in ("num_kv_heads", "kv_head_num") if k in kwargs), None)
    return str(
        (
            _meaning(shape),
            sorted((k, v) for k, v in kwargs.items() if k not in _SIZES),
            sorted(k for k in kwargs if k in ("context_lens", "columns", "padding")),
            heads and kv_heads and (heads == kv_heads, kv_heads == 1),
            kwargs.get("out_features") == 1,
        )
    )


def _cost(problem: Problem, shape: Shape, device: torch.device) -> float | None:
    work = problem.work(shape)
    over = work.total_flops > LIMIT_FLOPS[device.type] or work.total_bytes > LIMIT_BYTES[device.type]
    return None if over else work.total_flops + 50 * work.total_bytes


def _origin(problem: Problem, shape: Shape) -> str | None:
    about = problem.metadata.shapes.get(shape.id)
    return about.origin if about else None
