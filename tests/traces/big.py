"""A Kineto file of any size, written as PyTorch's profiler writes it: steps of a decoder with stacks, shapes and flows.

Run it to write a file by hand: `python -m tests.traces.big OUT --events 1300000`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

HEADER = {
    "schemaVersion": 1,
    "deviceProperties": [
        {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9, "computeMinor": 0,
         "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048, "regsPerBlock": 65536, "warpSize": 32,
         "sharedMemPerBlock": 49152, "numSms": 132, "regsPerMultiprocessor": 65536}
    ],
    "cupti_version": 130001,
    "cuda_runtime_version": 13000,
    "cuda_driver_version": 13000,
    "with_stack": 1,
    "record_shapes": 1,
    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1, "pg_count": 1,
                        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 1, "ranks": [0]}]},
    "trace_id": "00000000000000000000000000000001",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1790857026000000000,
}  # fmt: skip

# One decoder layer: (module, frames inside it, ops from the outermost, kernel, grid, block, device us).
_ATTENTION = (
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>>"
)
LAYER = [
    ("Qwen3RMSNorm", 2, ["_C::fused_add_rms_norm"],
     "std::enable_if<true, void>::type vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, int, float)",
     [16, 1, 1], [1024, 1, 1], 3.2),
    ("QKVParallelLinear", 3, ["aten::linear", "aten::matmul", "aten::mm"],
     "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", [132, 1, 1], [384, 1, 1], 11.9),
    ("Qwen3RMSNorm", 2, ["_C::rms_norm"],
     "void vllm::rms_norm_kernel<c10::BFloat16, 8, 3>(c10::BFloat16*, c10::BFloat16 const*, float, int, int)",
     [512, 1, 1], [128, 1, 1], 2.3),
    ("Attention", 4, ["vllm::unified_kv_cache_update", "_C_cache_ops::reshape_and_cache_flash"],
     "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, (vllm::Fp8KVCacheDataType)0>(int)",
     [16, 1, 1], [512, 1, 1], 2.6),
    ("Attention", 4, ["vllm::unified_attention_with_output", "_vllm_fa2_C::varlen_fwd"], _ATTENTION + "(int)",
     [2, 8, 16], [128, 1, 1], 24.7),
    ("RowParallelLinear", 3, ["aten::linear", "aten::matmul", "aten::mm"],
     "nvjet_tst_64x16_64x16_2x1_v_bz_splitK_TNT", [132, 1, 1], [384, 1, 1], 9.1),
    ("SiluAndMul", 2, ["_C::silu_and_mul"],
     "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(c10::BFloat16*, int)",
     [16, 1, 1], [1024, 1, 1], 2.9),
    ("RowParallelLinear", 3, ["aten::linear", "aten::matmul", "aten::mm"],
     "nvjet_tst_128x16_64x8_2x1_v_bz_TNT", [132, 1, 1], [384, 1, 1], 30.4),
]  # fmt: skip
FRAMES_A_CALL = 4  # torch/nn/modules/module.py frames around every module


def write(path: Path, events: int, layers: int = 36, step_name: str = "step[DECODE bs=16]") -> dict[str, int]:
    """Write a Kineto JSON file of at least `events` events in whole steps; returns how many of each category it
    holds.
    """
    counts = {"kernel": 0, "cpu_op": 0, "python_function": 0, "cuda_runtime": 0, "user_annotation": 0, "ac2g": 0}
    now = 5111432874024427  # host clock, ns
    device = now + 40_000
    total = external = python = correlation = index = 0
    pid = 422

    def us(ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03d}"

    def event(cat: str, name: str, start: int, dur: int, args: str) -> str:
        counts[cat] += 1
        return (
            f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {pid}, '
            f'"ts": {us(start)}, "dur": {us(dur)}, "args": {{{args}}}}}'
        )

    with path.open("w", encoding="utf-8") as out:
        head = json.dumps(HEADER, indent=2)
        out.write(head[: head.rindex("}")].rstrip() + ',\n  "traceEvents": [\n')
        first = True
        while total < events:
            lines: list[str] = []
            step_start, body = now, []
            now += 5_000
            for layer in range(layers):
                layer_start = now
                now += 2_000
                for slot, (module, frames, ops, kernel, grid, block, micros) in enumerate(LAYER):
                    starts = []
                    for frame in range(FRAMES_A_CALL + frames):
                        starts.append((frame, now))
                        now += 600
                    op_starts = []
                    for op in ops:
                        op_starts.append((op, now))
                        now += 1_500
                    correlation += 1
                    external += len(ops)
                    launch = now
                    now += 4_000
                    body.append(
                        event("cuda_runtime", "cudaLaunchKernel", launch, 3_500,
                              f'"External id": {external}, "cbid": 211, "correlation": {correlation}')
                    )  # fmt: skip
                    for depth, (op, start) in enumerate(reversed(op_starts)):
                        now += 700
                        index += 1
                        body.append(
                            event("cpu_op", op, start, now - start,
                                  f'"External id": {external - depth},"Record function id": 0, '
                                  '"Concrete Inputs": ["", "", ""], '
                                  '"Input type": ["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"], '
                                  f'"Input Strides": [[4096, 1], [1, 4096], [1]], '
                                  f'"Input Dims": [[16, 4096], [4096, {4096 + slot}], [4096]], "Ev Idx": {index}')
                        )  # fmt: skip
                    for frame, start in reversed(starts):
                        now += 300
                        python += 1
                        index += 1
                        if frame == 3:
                            name, extra = f"nn.Module: {module}_{layer * 8 + slot}", f', "Python module id": {slot}'
                        elif frame < 3:
                            name, extra = "torch/nn/modules/module.py(1773): _call_impl", ""
                        else:
                            name, extra = f"vllm/layers/{module.lower()}.py({90 + frame}): forward", ""
                        body.append(
                            event("python_function", name, start, now - start,
                                  f'"Python parent id": {python + 1}, "Python id": {python}{extra}, "Ev Idx": {index}')
                        )  # fmt: skip
                    duration = int(micros * 1000) + (correlation * 37) % 200
                    device = max(device + 900, launch + 2_000)
                    counts["kernel"] += 1
                    counts["ac2g"] += 2
                    body.append(
                        f'{{"ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7, '
                        f'"ts": {us(device)}, "dur": {us(duration)}, "args": {{'
                        f'"External id": {external}, "queued": 0, "device": 0, "context": 1, "stream": 7, '
                        f'"correlation": {correlation}, "registers per thread": 32, "shared memory": 0, '
                        f'"blocks per SM": 1.0, "warps per SM": 8.0, "grid": {grid}, "block": {block}, '
                        '"est. achieved occupancy %": 0}}'
                    )
                    body.append(
                        f'{{"ph": "f", "id": {correlation}, "pid": 0, "tid": 7, "ts": {us(device)}, '
                        '"cat": "ac2g", "name": "ac2g", "bp": "e"}'
                    )
                    body.append(
                        f'{{"ph": "s", "id": {correlation}, "pid": {pid}, "tid": {pid}, "ts": {us(launch)}, '
                        '"cat": "ac2g", "name": "ac2g"}'
                    )
                    device += duration
                index += 1
                python += 1
                body.append(
                    event("python_function", f"nn.Module: Qwen3DecoderLayer_{layer}", layer_start, now - layer_start,
                          f'"Python parent id": null, "Python id": {python}, "Python module id": {layer}, '
                          f'"Ev Idx": {index}')
                )  # fmt: skip
                now += 1_000
            external += 1
            lines.append(
                event("user_annotation", step_name, step_start, now - step_start,
                      f'"External id": {external}, "Record function id": 0, "Ev Idx": {index + 1}')
            )  # fmt: skip
            lines += body
            now = max(now, device) + 20_000
            total += len(lines)
            out.write(("" if first else ",\n") + ",\n".join(lines))
            first = False
        out.write('\n  ],\n  "traceName": "big.json"\n}\n')
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--events", type=int, default=1_300_000)
    chosen = parser.parse_args()
    print(json.dumps(write(chosen.out, chosen.events)))
