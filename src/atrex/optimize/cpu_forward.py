"""Runs a candidate on the CPU in a jail, to be looked at. It is copied there alone and imports nothing of this package.

In the working folder lie candidate.py, inputs.pt and order.json. Prints a line of JSON: `wall_us` (median of `calls`
forwards), `aten` (operation -> microseconds of its own time a forward). Every line that is then read runs about a
second of forwards and prints how many they were.
"""

import importlib.util
import json
import statistics
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile

WARM_UP, ENOUGH_S, MOST, LOOP_S = 3, 0.5, 200, 1.0


def main():
    torch.set_grad_enabled(False)
    with open("order.json", encoding="utf-8") as file:
        order = json.load(file)
    inputs = torch.load("inputs.pt", weights_only=True)
    spec = importlib.util.spec_from_file_location("candidate", "candidate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["candidate"] = module
    spec.loader.exec_module(module)
    model = module.Model(**order["init_kwargs"]).eval()
    kept = {name: inputs[name].clone() for name in order["mutates"]}

    def forward():
        model(*inputs.values())

    def restore():
        for name, value in kept.items():
            inputs[name].copy_(value)

    for _ in range(WARM_UP):
        forward()
        restore()
    took = []
    while len(took) < MOST and (len(took) < WARM_UP or sum(took) < ENOUGH_S):
        begun = time.perf_counter()
        forward()
        took.append(time.perf_counter() - begun)
        restore()
    calls = min(len(took), 20)
    own = {}
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(calls):
            forward()
    for each in seen.key_averages():
        if each.key.startswith("aten::") and each.self_cpu_time_total > 0:
            own[each.key] = each.self_cpu_time_total / calls
    print(json.dumps({"wall_us": statistics.median(took) * 1e6, "calls": len(took), "aten": own}), flush=True)
    for _ in sys.stdin:
        done, begun = 0, time.perf_counter()
        while not done or time.perf_counter() - begun < LOOP_S:
            forward()
            done += 1
        print(json.dumps({"calls": done}), flush=True)


if __name__ == "__main__":
    main()
