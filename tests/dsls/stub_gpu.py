"""A Triton driver without a device: it compiles for sm_90 for real and runs Triton's launch path, but launches nothing.

Used as a script (`python stub_gpu.py SCENARIO ...`) in a process of its own, since hooks and the driver are global.
"""

import json
import os
import sys
import tempfile
from pathlib import Path


def install() -> None:
    """Make every later Triton launch compile for sm_90 and end before the device."""
    from triton.runtime import driver

    from atrex.dsls.offline import parse_target
    from atrex.dsls.offline.triton_launch import Driver

    driver.set_active(Driver(parse_target("sm_90")))


def load(path):
    import importlib.util

    spec = importlib.util.spec_from_file_location("candidate_" + Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def session(source):
    """A Triton session for `source` on the stub, and the imported candidate."""
    import triton  # noqa: F401  imported before the session, as in a forked worker

    from atrex import dsls

    install()
    scratch = Path(tempfile.mkdtemp(dir=os.environ.get("STUB_SCRATCH")))
    return dsls.get("triton").instrument(scratch, Path(source)), load(source)


def examples(folder):
    """Compile every specialization that the Triton examples launch for a few shapes; {operator: [artifact]}."""
    import torch

    def bf16(*shape):
        return torch.zeros(shape, dtype=torch.bfloat16)

    def fp8(*shape):
        return torch.zeros(shape, dtype=torch.float8_e4m3fn)

    def attention(s, h, g, d, dtype):
        keys, values = torch.zeros(40, g, d // 8, 16, 8, dtype=dtype), torch.zeros(40, g, d, 16, dtype=dtype)
        tables, lens = torch.zeros(s, 9, dtype=torch.int32), torch.ones(s, dtype=torch.int32)
        return torch.zeros(s, h, d, dtype=dtype), keys, values, tables, lens

    def gemm(m, n, k):
        return fp8(m, k), fp8(n, k), torch.ones(m, k // 128), torch.ones(n // 128, k // 128)

    calls = {
        "rms_norm": ((1e-6,), [(bf16(t, h), bf16(h)) for t, h in [(3, 128), (9000, 128), (5, 1152), (2, 8192)]]),
        "silu_and_mul": ((), [(bf16(t, d),) for t, d in [(1, 1536), (4000, 1536), (7, 8192)]]),
        "fused_add_rms_norm": ((1e-6,), [(bf16(t, h), bf16(t, h), bf16(h)) for t, h in [(3, 1280), (3, 7168)]]),
        "moe_topk_gating_softmax": ((8,), [(torch.zeros(t, e),) for t, e in [(1, 128), (8192, 256)]]),
        "block_scaled_mm": ((128, 128), [gemm(237, 256, 256), gemm(20000, 256, 256)]),
        "paged_attention_decode": ((), [attention(1, 16, 2, 256, torch.bfloat16),
                                        attention(60, 40, 8, 128, torch.float16)]),
    }  # fmt: skip
    seen = {}
    for operator, (init, inputs) in calls.items():
        watch, candidate = session(Path(folder) / f"{operator}.py")
        for arguments in inputs:
            candidate.Model(*init)(*arguments)
        seen[operator] = {"artifacts": watch.artifacts(), "missing": watch.missing()}
        watch.close()
    return seen


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
