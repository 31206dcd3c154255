"""`atrex eval --engine ray` on two nodes of one machine, one of them killed in mid-run: what it costs.

    python benchmarks/ray_lost_node.py --units 12 --out results/ray-lost-node.json

The nodes are Ray's own, each with one judge on the CPU. The second is killed, without notice, when it has begun its
third unit. Needs atrex[ray].
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

from atrex.evaluate.budgets import predicted_seconds
from atrex.evaluate.run import Request, device_name, run, versions
from atrex.evaluate.rundir import now
from atrex.evaluate.setup import resolve_device
from atrex.problems.load import load_suite

CANDIDATE = Path(__file__).parents[1] / "examples" / "candidates" / "torch" / "rms_norm.py"
KILL_AT = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=12)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    problem = load_suite().problem("rms_norm")
    smallest = sorted(problem.shapes.values(), key=lambda shape: predicted_seconds(problem.work(shape)))
    shapes = [shape.id for shape in smallest[: args.units]]
    node = {"num_cpus": 1, "resources": {"atrex_cpu": 1}, "object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    second = cluster.add_node(**node)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    begun: list[tuple[str, str]] = []
    killed: dict[str, object] = {}

    def watch(place: str, name) -> None:
        if name is None:
            return
        begun.append((place, name.shape))
        on_second = [shape for where, shape in begun if second.node_id[:8] in where]
        if not killed and len(on_second) == KILL_AT:
            killed.update(in_flight=name.shape, at=time.monotonic(), units_begun=len(begun))
            cluster.remove_node(second, allow_graceful=False)

    with tempfile.TemporaryDirectory() as folder:
        request = Request(
            [str(CANDIDATE)], shapes=",".join(shapes), seeds=1, timed_calls=20, held_out=False, readiness=False,
            engine="ray", out=Path(folder) / "run",
        )  # fmt: skip
        started = time.monotonic()
        outcome = run(request, watch=watch)
        ended = time.monotonic()
        lines = (Path(folder) / "run" / "units.jsonl").read_text().splitlines()
    ray.shutdown()
    cluster.shutdown()
    recorded = Counter(json.loads(line)["shape"] for line in lines)
    given = Counter(shape for _, shape in begun)
    record = {
        "what": "two Ray nodes on one machine, a judge on each, the second node killed in mid-run",
        "command": "python benchmarks/ray_lost_node.py " + " ".join(sys.argv[1:]),
        "created": now(),
        "device": "cpu",
        "device_name": device_name(resolve_device("cpu")),
        "versions": versions() | {"ray": ray.__version__},
        "planned": len(shapes),
        "killed": {
            "units_begun": killed.get("units_begun"),
            "in_flight_on_it": killed.get("in_flight"),
            "seconds_into_the_run": round(killed["at"] - started, 1) if killed else None,
        },
        "recorded_once": sum(n == 1 for n in recorded.values()),
        "recorded_twice": sum(n > 1 for n in recorded.values()),
        "not_recorded": len(set(shapes) - set(recorded)),
        "given_out_twice": sorted(shape for shape, n in given.items() if n > 1),
        "records_by_node": Counter("second" if second.node_id[:8] in r.node else "first" for r in outcome.records),
        "verdicts": Counter(r.verdict.status for r in outcome.records),
        "seconds": round(ended - started, 1),
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
