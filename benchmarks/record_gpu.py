"""Attach to a transformers generation loop that runs on a GPU and holds no code of a profiler.

    python benchmarks/record_gpu.py record --trace gpu-attach.json.gz --out gpu-attach.json
    python benchmarks/record_gpu.py explain gpu-attach.json.gz --out gpu-attach.json

`record` starts the loop as a process of its own (a Llama-like model with random weights, nothing is downloaded),
attaches to it and leaves the trace and a record. Whether the loop goes on, at its former speed and with the same
tokens, is checked after a recording of `--steps` model steps, after a recorder that was killed in the middle of its
window, and after `--attachments` short recordings in a row. It needs Python, torch and transformers, and nothing else
of Atrex's requirements. `explain` imports the trace (it needs atrex[traces]) and adds what is known of its kernels.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

BATCH, PROMPT, NEW = 8, 512, 32
LAYERS, HIDDEN, HEADS, GROUPS, INNER, WORDS = 8, 1024, 16, 4, 3072, 32000
START = 600.0  # seconds that torch and the first generation may take


def generate(device: str, folder: Path) -> None:
    """The loop: the same prompts again and again, greedily, until the file `stop` is in the folder.

    `turns.jsonl` gets a line per turn: its seconds, and whether its tokens are those of the first. On a CPU, for a try,
    everything is smaller.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    scale = 1 if device.startswith("cuda") else 8
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=WORDS // scale, hidden_size=HIDDEN // scale, intermediate_size=INNER // scale,
        num_hidden_layers=LAYERS, num_attention_heads=HEADS // scale, num_key_value_heads=max(1, GROUPS // scale),
        max_position_embeddings=2 * PROMPT,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device=device, dtype=torch.bfloat16).eval()
    prompts = torch.randint(3, config.vocab_size, (BATCH, PROMPT // scale), device=device)
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}
    expected = None
    with open(folder / "turns.jsonl", "w", buffering=1) as log:
        while not (folder / "stop").exists():
            began = time.monotonic()
            with torch.no_grad():
                tokens = model.generate(prompts, attention_mask=torch.ones_like(prompts), **options).cpu()
            expected = tokens if expected is None else expected
            same = bool(torch.equal(tokens, expected))
            log.write(json.dumps({"seconds": time.monotonic() - began, "same": same}) + "\n")


class Loop:
    """The loop as a process."""

    def __init__(self, device: str, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, __file__, "generate", "--device", device, "--folder", str(folder)]
        self.process = subprocess.Popen(command)
        self.pid = self.process.pid
        self.wait_for(5)

    def turns(self) -> list[dict[str, Any]]:
        try:
            lines = (self.folder / "turns.jsonl").read_text().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def wait_for(self, more: int) -> dict[str, Any]:
        """Further turns: their median seconds. Raises SystemExit where the loop has ended, hangs or errs."""
        before, deadline = len(self.turns()), time.monotonic() + START
        while len(turns := self.turns()) < before + more:
            if self.process.poll() is not None:
                raise SystemExit(f"the loop ended with status {self.process.returncode}")
            if time.monotonic() > deadline:
                raise SystemExit(f"the loop hangs: no turn in {START:.0f} s")
            time.sleep(0.01)
        if not all(turn["same"] for turn in turns):
            raise SystemExit(f"turns with other tokens: {[i for i, t in enumerate(turns) if not t['same']]}")
        seconds = [turn["seconds"] for turn in turns[before:]]
        return {"turns": len(seconds), "median_s": round(statistics.median(seconds), 4)}

    def end(self) -> int:
        (self.folder / "stop").touch()
        return self.process.wait(START)


def what_is_in(trace: Path) -> dict[str, Any]:
    """A count of a trace's events, without Atrex's importer."""
    with (gzip.open if trace.suffix == ".gz" else open)(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    kinds = Counter(e["cat"] for e in events if e.get("ph") == "X" and "cat" in e)
    kernels = [e for e in events if e.get("cat") == "kernel"]
    operators = [e for e in events if e.get("cat") == "cpu_op"]
    steps = Counter(e["name"] for e in events if e.get("cat") == "user_annotation")
    calls = [e.get("args", {}) for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    launches = {call["correlation"] for call in calls if "correlation" in call}
    return {
        "events": dict(kinds.most_common()),
        "kernel_ms": round(sum(e["dur"] for e in kernels) / 1e3, 3),
        "kernels_with_their_launch": sum(e["args"].get("correlation") in launches for e in kernels),
        "operators_with_shapes": sum(bool(e.get("args", {}).get("Input Dims")) for e in operators),
        "steps": {phase: sum(n for name, n in steps.items() if found in name) for phase, found in
                  (("prefill", "_generation_0("), ("decode", "context_0("))},
        "step_names": dict(steps.most_common(4)),
        "longest_kernels": dict(Counter({e["name"][:120]: e["dur"] for e in kernels}).most_common(5)),
    }  # fmt: skip


def record(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from atrex.errors import UserError
    from atrex.traces.record.attach import record_pid
    from atrex.traces.record.window import Window

    def tell(line: str) -> None:
        print(line, flush=True)

    device = torch.cuda.get_device_name(options.device) if options.device.startswith("cuda") else "CPU"
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(options.device, Path(folder))
        found: dict[str, Any] = {
            "what": "attachments to a running transformers generation loop",
            "command": "python benchmarks/record_gpu.py " + " ".join(sys.argv[1:]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": device, "versions": versions(),
            "loop": f"Llama-like, {LAYERS} layers, hidden {HIDDEN}, bf16, {BATCH} x {PROMPT} tokens, {NEW} new",
            "before": loop.wait_for(10),
        }  # fmt: skip
        print("before", found["before"], flush=True)
        try:
            done = record_pid(loop.pid, Window(120.0, steps=options.steps, stack=options.stack), options.trace, tell)
        except UserError as error:
            loop.end()
            raise SystemExit(str(error)) from None
        found |= {"recording": done.document() | {"files": [options.trace.name]}, "after": loop.wait_for(10)}
        found["trace"] = what_is_in(options.trace) | {"bytes": options.trace.stat().st_size}
        print(json.dumps(found["recording"], indent=2), json.dumps(found["trace"], indent=2), flush=True)
        found["recorder_killed"] = kill_a_recorder(loop)
        took, paused = [], []
        for _ in range(options.attachments):
            began = time.monotonic()
            short = record_pid(loop.pid, Window(0.05), Path(folder) / "short.json")
            took.append(time.monotonic() - began)
            paused.append(short.details["paused_s"])
        if took:
            found["in_a_row"] = {
                "recordings": len(took), "window_s": 0.05,
                "whole_recording_median_s": round(statistics.median(took), 3),
                "paused_median_ms": round(1e3 * statistics.median(paused), 3),
                "paused_max_ms": round(1e3 * max(paused), 3), "after": loop.wait_for(10),
            }  # fmt: skip
        found["turns_with_the_same_tokens"] = len(loop.turns())
        found["loop_ended_with"] = loop.end()
    return found


def kill_a_recorder(loop: Loop) -> dict[str, Any]:
    """One that is killed within its window: the loop stops recording by itself."""
    code = (
        "import sys; sys.path.insert(0, {src!r})\nfrom pathlib import Path\n"
        "from atrex.traces.record.attach import record_pid\nfrom atrex.traces.record.window import Window\n"
        "record_pid({pid}, Window(60.0), Path({out!r}), lambda line: print(line, flush=True))\n"
    ).format(src=str(ROOT / "src"), pid=loop.pid, out=str(loop.folder / "lost.json"))
    recorder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    while not (line := recorder.stdout.readline()).startswith("recording"):
        if not line:
            raise SystemExit("the recorder that was to be killed did not record")
    time.sleep(0.3)
    recorder.send_signal(signal.SIGKILL)
    recorder.wait()
    return {"after": loop.wait_for(10)}


def versions() -> dict[str, str]:
    import torch
    import transformers

    found = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
    return found | ({"cuda": torch.version.cuda} if torch.version.cuda else {})


def explain(trace: Path, out: Path) -> dict[str, Any]:
    """The record with what the importer knows of the trace's device time."""
    from atrex.traces import importer, summary
    from atrex.traces.pipeline import Options

    analysis = importer.analyse_file(trace, Options(), [], trace.name, os.cpu_count() or 1, None)
    about = summary.summarize(analysis, trace.name, None, analysis.trace.meta.rank)
    return json.loads(out.read_text()) | {"imported": about}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("--device", default="cuda:0")
    recording.add_argument("--steps", type=int, default=2 * NEW)
    recording.add_argument("--stack", action="store_true", help="with Python frames and module names")
    recording.add_argument("--attachments", type=int, default=50)
    recording.add_argument("--trace", type=Path, required=True)
    recording.add_argument("--out", type=Path, required=True)
    explaining = commands.add_parser("explain")
    explaining.add_argument("trace", type=Path)
    explaining.add_argument("--out", type=Path, required=True, help="the record of `record`; it is added to")
    generating = commands.add_parser("generate")
    generating.add_argument("--device", required=True)
    generating.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "generate":
        generate(options.device, options.folder)
        return
    found = record(options) if options.command == "record" else explain(options.trace, options.out)
    options.out.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
