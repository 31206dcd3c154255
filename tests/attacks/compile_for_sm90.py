"""Compile the Triton kernels of the attacks for sm_90 on a stub driver (started by test_cuda_sources.py)."""

import json
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "dsls"))
import stub_gpu  # noqa: E402

from atrex.attacks.harness.declare import attacks  # noqa: E402
from atrex.attacks.harness.sources import candidate_source  # noqa: E402
from atrex.attacks.harness.table import _suite  # noqa: E402


def seen(form, text):
    """Names of the kernels that one forward on the form's CUDA shape compiles, and what it printed of a refusal."""
    problem = _suite(form.suite).problem(form.operator)
    shape = problem.shape(form.shape("cuda"))
    path = Path(tempfile.mkdtemp()) / f"{form.operator}.py"
    path.write_text(candidate_source(form, text, "cuda"))
    watch, candidate = stub_gpu.session(path)
    candidate.Model(**shape.init_kwargs)(*problem.make_inputs(shape, 1, torch.device("cpu"), "e4m3fn").values())
    found = {"kernels": [a["name"] for a in watch.artifacts()], "missing": watch.missing()}
    watch.close()
    return found


forms = {name: next(f for f in attack.forms if "cuda" in f.devices) for name, attack in attacks().items()
         if any("cuda" in f.devices for f in attack.forms)}  # fmt: skip
print(
    json.dumps(
        {
            "rms_norm": seen(forms["input_copy"], forms["input_copy"].twin),
            "autotuner": seen(forms["autotuner"], forms["autotuner"].twin),
            "block_scaled_mm": seen(forms["fp16_accumulate"], forms["fp16_accumulate"].twin),
            "fp16": seen(forms["fp16_accumulate"], forms["fp16_accumulate"].cheats[""]),
            "tf32": seen(forms["tf32"], forms["tf32"].cheats[""]),
            "bf16_state": seen(forms["bf16_state"], forms["bf16_state"].cheats[""]),
            "linear_sigmoid_mul": seen(forms["aliased_matmul"], forms["aliased_matmul"].twin),
            "aliased_matmul": seen(forms["aliased_matmul"], forms["aliased_matmul"].cheats["operator"]),
            "fallback_on_exception": seen(forms["fallback_on_exception"], forms["fallback_on_exception"].cheats[""]),
            "shared_memory_launch": seen(forms["shared_memory_launch"], forms["shared_memory_launch"].cheats[""]),
        }
    )
)
