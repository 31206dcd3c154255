"""A small serving run as a list of events, and the dialects and kinds of damage in which profilers leave such lists.

Times are integer nanoseconds. One prefill step and decode steps of a model with a few layers: per layer an RMS norm,
a matrix product, attention, and a SiLU, each an operator under a module that launches one kernel.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

BASE_NS = 1_790_857_026_000_000_000
START = 5_111_432_874_024_427
PID = 422

# (module, operators from the outside in, kernel, device ns)
LAYER = [
    ("RMSNorm", ["_C::rms_norm"], "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, int)", 2_301),
    ("Linear", ["aten::linear", "aten::mm"], "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 11_907),
    ("Attention", ["vllm::unified_attention_with_output"],
     "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>, false>(flash::Flash_fwd_params)", 24_703),
    ("SiluAndMul", ["_C::silu_and_mul"],
     "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel, true>(c10::BFloat16*, int)", 3_119),
]  # fmt: skip
KERNELS_A_STEP = len(LAYER)


class Scene:
    """Builds events. `host` and `device` are the next free nanosecond on either side."""

    def __init__(self, rocm: bool = False, stream: int = 7) -> None:
        self.events: list[dict[str, Any]] = []
        self.host, self.device = START, START + 50_000
        self.correlation = 0
        self.rocm, self.stream = rocm, stream

    def add(self, cat: str, name: str, start: int, dur: int, pid: int = PID, tid: int = PID, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": dur, "args": args}
        )

    def launch(self, kernel: str | None, dur: int, api: str | None = None, cat: str = "kernel", **args: Any) -> int:
        """A launch, and its device record unless `kernel` is None; returns the correlation id."""
        self.correlation += 1
        api = api or ("hipLaunchKernel" if self.rocm else "cudaLaunchKernel")
        more = {"kernel": kernel} if self.rocm and kernel else {}
        self.add("cuda_runtime", api, self.host, 3_500, correlation=self.correlation, **{"External id": 1}, **more)
        if kernel is not None:
            self.record(kernel, dur, self.correlation, cat, **args)
        self.host += 4_000
        return self.correlation

    def record(self, name: str, dur: int, correlation: int, cat: str = "kernel", **args: Any) -> None:
        self.device = max(self.device + 700, self.host + 2_000)
        shape = {} if self.rocm else {"grid": [132, 1, 1], "block": [128, 1, 1]}
        self.add(cat, name, self.device, dur, 0, self.stream, device=0, stream=self.stream, correlation=correlation,
                 **shape, **args)  # fmt: skip
        self.device += dur

    def call(self, ops: list[str], kernel: str | None, dur: int, module: str | None = None, dims: Any = None,
             frame: str | None = None, api: str | None = None, **args: Any) -> None:  # fmt: skip
        """Operators around one launch, under a module and a frame if given."""
        begun, start = [], self.host
        for op in ops:
            begun.append((op, self.host))
            self.host += 1_001
        self.launch(kernel, dur, api, **args)
        for op, at in reversed(begun):
            self.host += 503
            self.add(
                "cpu_op",
                op,
                at,
                self.host - at,
                **({"Input Dims": dims, "Input type": ["c10::BFloat16"]} if dims else {}),
            )
        self.host += 200
        for name in (frame, f"nn.Module: {module}" if module else None):
            if name:
                self.add("python_function", name, start - 100, self.host - start + 100)
                start -= 100
        self.host += 1_000

    def step(self, name: str, tokens: int = 16) -> None:
        start = self.host
        self.host += 5_000
        for slot, (module, ops, kernel, dur) in enumerate(LAYER):
            self.call(ops, kernel, dur, f"{module}_{slot}", [[tokens, 4096], [4096]])
        self.add("user_annotation", name, start, self.host - start)
        self.host += 9_000


def serving() -> Scene:
    """A prefill step of 512 tokens and two decode steps of 16 requests."""
    scene = Scene()
    scene.step("execute_context_1(512)_generation_0(0)", 512)
    for _ in range(2):
        scene.step("execute_context_0(0)_generation_16(16)")
    return scene


HEADER = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "warpSize": 32}],
    "cuda_runtime_version": 13000,
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
    "displayTimeUnit": "ms",
}
_OLD = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime", "gpu_memcpy": "Memcpy"}


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _text(event: dict[str, Any], offset: int, indent: int | None, whole: bool = False) -> str:
    """One event with its times in microseconds, digits kept."""
    times = {"ts": event["ts"] + offset, "dur": event["dur"]}
    marked = {**event, **{k: f"@{v // 1000 if whole else _us(v)}@" for k, v in times.items()}}
    return json.dumps(marked, indent=indent, ensure_ascii=False).replace('"@', "").replace('@"', "")


def render(events: list[dict[str, Any]], dialect: str = "kineto", header: dict[str, Any] | None = None) -> bytes:
    """Events as a file of a dialect: kineto, compact, pretty, header_last, header_split, bare, absolute, integer,
    torch_1_8.
    """
    header = dict(HEADER if header is None else header)
    indent = {"compact": None, "bare": None}.get(dialect, 2)
    separator = "," if dialect == "compact" else ",\n"
    if dialect == "torch_1_8":
        events = [_old(e) for e in events]
        body = separator.join(_text(e, BASE_NS, indent, whole=True) for e in events)
        return f'{{"schemaVersion": 1, "traceEvents": [\n{body}\n]}}'.encode()
    if dialect in ("absolute", "integer"):
        body = separator.join(_text(e, BASE_NS, indent, dialect == "integer") for e in events)
        return f'{{"schemaVersion": 1, "cupti_version": 18, "traceEvents": [\n{body}\n]}}'.encode()
    body = separator.join(_text(e, 0, indent) for e in events)
    if dialect == "bare":
        return f"[{body}]".encode()
    header["baseTimeNanoseconds"] = BASE_NS
    before, after = header, {"traceName": "t.json"}
    if dialect == "header_last":
        before, after = {}, header
    elif dialect == "header_split":
        keys = list(header)
        before, after = {k: header[k] for k in keys[:2]}, {k: header[k] for k in keys[2:]}
    opening = json.dumps(before, indent=indent)[:-1].rstrip() + (", " if before else "")
    closing = json.dumps(after, indent=indent)[1:]
    return f'{opening}\n"traceEvents": [\n{body}\n],\n{closing}'.encode()


DIALECTS = ("kineto", "compact", "pretty", "header_last", "header_split", "bare", "absolute", "integer", "torch_1_8")


def _old(event: dict[str, Any]) -> dict[str, Any]:
    """As torch 1.8 wrote it: categories as words, thread ids as text, keys of arguments in lower case."""
    args = {{"External id": "external id", "Input Dims": "Input dims"}.get(k, k): v for k, v in event["args"].items()}
    tid = f"stream {event['tid']}" if event["cat"] == "kernel" else str(event["tid"])
    return {**event, "cat": _OLD.get(event["cat"], event["cat"]), "tid": tid, "args": args}


def compressed(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)
