"""Profile six kernels with ncu and keep what it says: the fixtures that `atrex wiki advise` is tested on.

    python benchmarks/wiki_fixtures.py --device cuda:0 --out tests/wiki/fixtures

Each kernel has one thing wrong (uncoalesced, spilling, bank_conflicted, tiny) or nothing (streaming, tensor_core).
Needs ncu with the right to read counters, and Triton 3.6 or newer. `--only NAME` profiles one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

KERNELS = {
    "streaming": ("triton_kernels", "streaming", "triton", "streaming_kernel"),
    "uncoalesced": ("triton_kernels", "uncoalesced", "triton", "uncoalesced_kernel"),
    "spilling": ("triton_kernels", "spilling", "triton", "spilling_kernel"),
    "bank_conflicted": ("gluon_kernels", "bank_conflicted", "gluon", "bank_conflict_kernel"),
    "tiny": ("triton_kernels", "tiny", "triton", "tiny_kernel"),
    "tensor_core": ("triton_kernels", "tensor_core", "triton", "tensor_core_kernel"),
}
HERE = Path(__file__).resolve().parent


def prepare(name: str, device: str):
    """The work of a kernel, and a function that launches it once."""
    sys.path.insert(0, str(HERE))
    import importlib

    module = importlib.import_module(f"wiki_kernels.{KERNELS[name][0]}")
    return getattr(module, KERNELS[name][1])(device)


def run_one(name: str, device: str) -> None:
    """What ncu is given: warm up, then one launch between its start and stop."""
    import torch

    from atrex.profiling.forward import bracket

    torch.cuda.set_device(device)
    _, launch = prepare(name, device)
    for _ in range(3):
        launch()
    with bracket():
        launch()


def profile_one(name: str, device: str, out: Path, timeout: float) -> None:
    """Profile a kernel in a process of its own and write its evidence."""
    from atrex.hardware.detect import describe
    from atrex.profiling import collect, ncu

    module, _, dsl, kernel = KERNELS[name]
    source = HERE / "wiki_kernels" / f"{module}.py"
    command = [sys.executable, str(Path(__file__).resolve()), "--run", name, "--device", device]
    launches, missing = ncu.profile(command, Path("runs") / "wiki-fixtures" / f"{name}.ncu-rep", timeout)
    work, _ = prepare(name, "meta")  # no memory: this process stays off the device that is profiled
    evidence = collect.evidence_of(
        launches, collect.choose(launches, kernel, None), missing,
        tool_version=ncu.version(ncu.find_ncu()),
        command=["python", "benchmarks/wiki_fixtures.py", "--device", device, "--only", name],
        device=describe(device), candidate=f"benchmarks/wiki_kernels/{module}.py", source=source.read_bytes(),
        operator=name, shape="0", dsl=dsl, work=work,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(evidence.model_dump_json(indent=1) + "\n")
    figures = evidence.figures()
    print(f"{name}: {figures['atrex.duration_us']:.1f} us", end="")
    print(
        f", {figures['atrex.roofline_share']:.0%} of the roofline" if "atrex.roofline_share" in figures else "", end=""
    )
    print(f", {len(evidence.counters)} counters, missing {', '.join(evidence.missing) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("tests/wiki/fixtures"))
    parser.add_argument("--only", choices=list(KERNELS))
    parser.add_argument("--run", choices=list(KERNELS), help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a kernel")
    asked = parser.parse_args()
    if asked.run:
        run_one(asked.run, asked.device)
        return
    from atrex.errors import UserError

    failed = False
    Path("runs/wiki-fixtures").mkdir(parents=True, exist_ok=True)
    for name in [asked.only] if asked.only else KERNELS:
        try:
            profile_one(name, asked.device, asked.out, asked.timeout)
        except UserError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
    sys.exit(failed)


if __name__ == "__main__":
    main()
