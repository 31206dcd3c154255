"""One forward of a candidate between cudaProfilerStart and cudaProfilerStop: what a profiler is given to run.

``python -m atrex.profiling.forward CANDIDATE OPERATOR SHAPE --device cuda:0`` warms up (compilation, autotuning, caches
of workspaces), then brackets a single forward. The candidate runs with the rights of whoever calls this.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
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
    with bracket():
        model(*inputs.values())


if __name__ == "__main__":
    main()
