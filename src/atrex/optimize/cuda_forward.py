"""Runs a candidate on a GPU in a jail, under a profiler. It is copied there alone and imports nothing of this package.

In the working folder lie candidate.py, inputs.pt and order.json. Warms up (compilation, autotuning), then brackets one
forward with cudaProfilerStart and cudaProfilerStop; the device is idle before and after.
"""

import importlib.util
import json
import sys

import torch


def main():
    torch.set_grad_enabled(False)
    with open("order.json", encoding="utf-8") as file:
        order = json.load(file)
    device = torch.device(order["device"])
    torch.cuda.set_device(device)
    inputs = torch.load("inputs.pt", weights_only=True, map_location=device)  # strides stay as they are
    spec = importlib.util.spec_from_file_location("candidate", "candidate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    model = module.Model(**order["init_kwargs"]).to(device).eval()
    kept = {name: inputs[name].clone() for name in order["mutates"]}
    for _ in range(order["warmup"]):
        model(*inputs.values())
        for name, value in kept.items():
            inputs[name].copy_(value)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    try:
        model(*inputs.values())
        torch.cuda.synchronize()
    finally:
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
