"""Readiness probes, the worker's side: what a serving engine does with a kernel, done once on a CUDA device.

Each takes the worker's `Bench`; the judge has laid out the operands, and compares what is shown in the mailbox.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from atrex.evaluate.worker import Bench

_LEAD_US = 3000.0  # device time by which the stream that must be waited for lags behind


def workspace(bench: Bench, message: dict[str, Any]) -> dict[str, Any]:
    """Peak bytes that a forward allocates beside its outputs, as torch's allocator counts them."""
    bench.drop()
    torch.cuda.synchronize(bench.device)
    before = torch.cuda.memory_allocated(bench.device)
    torch.cuda.reset_peak_memory_stats(bench.device)
    bench.take(bench.forward())
    torch.cuda.synchronize(bench.device)
    made = sum(t.nbytes for t in bench.outputs.values())
    return {"bytes": max(0, torch.cuda.max_memory_allocated(bench.device) - before - made)}


def capture(bench: Bench, message: dict[str, Any]) -> dict[str, Any]:
    """Capture a forward in a CUDA graph, as engines do: warmed up on a side stream first."""
    bench.drop()
    side = torch.cuda.Stream(bench.device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            bench.forward()
    torch.cuda.current_stream().wait_stream(side)
    bench.graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(bench.graph):
        value = bench.forward()
    return bench.take(value)


def replay(bench: Bench, message: dict[str, Any]) -> dict[str, Any]:
    """Replay the captured graph on whatever its operands hold now, and show its outputs."""
    bench.graph.replay()
    torch.cuda.synchronize(bench.device)
    return bench.show(message)


def stream(bench: Bench, message: dict[str, Any]) -> dict[str, Any]:
    """A forward on a stream of its own, whose operands arrive late on that stream.

    The operands at place 0 are stale until the side stream has copied those of place 1 over them; work that a forward
    launches on another stream reads the stale ones.
    """
    bench.drop()
    stale, fresh = bench.places[0], bench.places[1]
    bench.operands = stale
    torch.cuda.synchronize(bench.device)
    side = torch.cuda.Stream(bench.device)
    with torch.cuda.stream(side):
        bench.protocol.delay(_LEAD_US)
        for name, operand in stale.items():
            operand.copy_(fresh[name])
        value = bench.forward()
        side.synchronize()
        return bench.take(value) | bench.show(message)


def concurrent(bench: Bench, message: dict[str, Any]) -> dict[str, Any]:
    """Two forwards at once, on two streams and the operands of two places; shows the outputs of place `shown`.

    Each stream runs a forward before: memory that a stream has not allocated yet comes from the driver, which waits for
    the device, and then the two would run one after the other.
    """
    if message["shown"] == 0:
        bench.drop()
        torch.cuda.synchronize(bench.device)
        streams = [torch.cuda.Stream(bench.device) for _ in range(2)]
        changed = [{name: operands[name].clone() for name in bench.mutates} for operands in bench.places[:2]]

        def both(lead_us: float) -> list[Any]:
            values = []
            for place, side in enumerate(streams):
                with torch.cuda.stream(side):
                    bench.protocol.delay(lead_us)
                    bench.operands = bench.places[place]
                    values.append(bench.forward())
            torch.cuda.synchronize(bench.device)
            return values

        both(0.0)
        for operands, before in zip(bench.places, changed, strict=False):
            for name, tensor in before.items():
                operands[name].copy_(tensor)
        torch.cuda.synchronize(bench.device)
        bench.pair = both(_LEAD_US)
    return bench.take(bench.pair[message["shown"]]) | bench.show(message)


def other_device(bench: Bench, message: dict[str, Any]) -> dict[str, Any]:
    """A forward whose operands are on another device than the current one; None where there is one device only."""
    others = [i for i in range(torch.cuda.device_count()) if i != bench.device.index]
    if not others:
        return {"devices": 1}
    bench.drop()
    device = torch.device("cuda", others[0])
    model = copy.deepcopy(bench.model).to(device)
    moved = {name: operand.to(device) for name, operand in bench.operands.items()}
    torch.cuda.synchronize(device)
    value = model(*moved.values())
    torch.cuda.synchronize(device)
    for name in bench.mutates:
        bench.operands[name].copy_(moved[name])
    described = bench.take(value)
    on = {output["device"] for output in described["outputs"]}
    bench.outputs = {name: output.to(bench.device) for name, output in bench.outputs.items()}
    return {"devices": torch.cuda.device_count(), "right_device": on <= {str(device)}} | bench.show(message)


PROBES = {f.__name__: f for f in (workspace, capture, replay, stream, concurrent, other_device)}
