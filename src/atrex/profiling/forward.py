"""One forward of a candidate between cudaProfilerStart and cudaProfilerStop: what a profiler is given to run.

``python -m atrex.profiling.forward CANDIDATE OPERATOR SHAPE --device cuda:0`` warms up (compilation, autotuning, caches
of workspaces), then brackets a single forward. With ``--time`` it prints how long a forward keeps the host busy
instead, which a profiler would lengthen. The candidate runs with the rights of whoever calls this.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def bracket():
    """The profiler sees what is launched inside, and all of it: the device is idle before and after."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    try:
        yield
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("candidate", "operator", "shape"):
        parser.add_argument(name)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suite", default=None)
    parser.add_argument("--time", action="store_true")
    asked = parser.parse_args()

    import torch

    from atrex.hardware.chip import load_chip
    from atrex.hardware.detect import describe
    from atrex.problems.load import load_suite

    torch.cuda.set_device(asked.device)
    torch.set_grad_enabled(False)
    problem = load_suite(asked.suite).problem(asked.operator)
    shape = problem.shape(asked.shape)
    chip = describe(asked.device).chip
    fp8 = (load_chip(chip).fp8 if chip else None) or "e4m3fn"
    inputs = problem.make_inputs(shape, asked.seed, asked.device, fp8)
    spec = importlib.util.spec_from_file_location("candidate", Path(asked.candidate).resolve())
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    model = module.Model(**shape.init_kwargs).to(asked.device).eval()
    # Operands that forward changes are restored, so that every call does the same work.
    kept = {name: inputs[name].clone() for name in problem.metadata.mutates}

    def restore() -> None:
        for name, value in kept.items():
            inputs[name].copy_(value)

    for _ in range(asked.warmup):
        model(*inputs.values())
        restore()
    if asked.time:
        print(json.dumps({"host_us": host_us(lambda: model(*inputs.values()), restore)}))
        return
    with bracket():
        model(*inputs.values())


def host_us(forward: Callable[[], object], restore: Callable[[], None], calls: int = 30) -> float:
    """Microseconds until a forward returns on an idle device: the median of `calls`."""
    import torch

    took = []
    for _ in range(calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        forward()
        took.append(time.perf_counter() - start)
        restore()
    return statistics.median(took) * 1e6


if __name__ == "__main__":
    main()
