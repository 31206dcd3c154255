"""Judges on a Ray cluster: two nodes on this machine, each unit recorded once, a lost node, where the secret is."""

import os
from pathlib import Path

import psutil
import pytest

from atrex.errors import UserError
from atrex.evaluate.budgets import Budgets
from atrex.evaluate.candidates import Candidate
from atrex.evaluate.engine import Terms
from atrex.evaluate.run import Request, run
from atrex.evaluate.seeds import Seeds
from atrex.evaluate.unit import Unit
from tests.evaluate.conftest import HONEST

pytestmark = pytest.mark.alone

SHAPES = ("15", "16", "28", "41", "46", "47")
TERMS = Terms(Seeds().secret, 1, Budgets(compile=60, execution=20, performance=5), 20, readiness=False)


def test_without_ray_the_line_says_what_to_install(monkeypatch):
    import sys

    from atrex.evaluate.ray_engine import RayEngine

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'atrex\[ray\]'"):
        RayEngine("cpu", 1, TERMS)


def test_an_address_without_the_engine_is_refused(tmp_path):
    with pytest.raises(UserError, match="--engine ray"):
        run(Request([str(tmp_path / "x.py")], address="auto"))


@pytest.fixture
def cluster(monkeypatch):
    """A head and a second node; each may judge on the CPU. The driver has joined it."""
    ray = pytest.importorskip("ray", reason="needs atrex[ray]")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "resources": {"atrex_cpu": 1}, "object_store_memory": 80 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args=node)
    made.add_node(**node)
    made.wait_for_nodes()
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def units(suite, tmp_path):
    path = tmp_path / "rms_norm.py"
    path.write_text(HONEST)
    problem = suite.problem("rms_norm")
    candidate = Candidate(path, str(path), str(path), "rms_norm", HONEST)
    return [Unit(candidate, problem, problem.shape(shape), "cpp") for shape in SHAPES]


def _places_of_secret(secret: bytes) -> list[str]:
    """Files of Ray's sessions, and environments and arguments of this user's processes, that hold the secret."""
    found = []
    forms = (secret, secret.hex().encode(), repr(secret)[2:-1].encode())
    for folder, _, names in os.walk("/tmp/ray"):
        for path in (Path(folder) / name for name in names):
            if path.is_file() and any(form in path.read_bytes() for form in forms):
                found.append(str(path))
    for process in psutil.process_iter():
        for kind in ("environ", "cmdline"):
            try:
                text = Path(f"/proc/{process.pid}/{kind}").read_bytes()
            except OSError:
                continue
            if any(form in text for form in forms):
                found.append(f"{kind} of {process.pid}")
    return found


@pytest.mark.slow
def test_a_lost_node_costs_only_its_units_in_flight_and_every_unit_is_recorded_once(cluster, units):
    from atrex.evaluate.ray_engine import RayEngine

    begun, lost, leaks = [], [], []
    second = cluster.list_all_nodes()[-1]

    def watch(place, name):
        if name is None:
            return
        begun.append((place, name.shape))
        if not lost and second.node_id[:8] in place and len(begun) > 2:  # it has a unit in hand, and has judged before
            lost.append((place, name.shape))
            leaks.extend(_places_of_secret(TERMS.secret))
            cluster.remove_node(second, allow_graceful=False)

    engine = RayEngine("cpu", 1, TERMS, watch=watch)
    try:
        records = list(engine.judge(units))
    finally:
        engine.close()
    assert lost, begun
    assert sorted(r.shape for r in records) == sorted(SHAPES)
    assert {r.verdict.status for r in records} == {"passed"}, [r.verdict for r in records]
    twice = [shape for shape in SHAPES if [s for _, s in begun].count(shape) > 1]
    assert twice == [lost[0][1]]
    assert leaks == []


@pytest.mark.slow
def test_a_unit_whose_judges_are_lost_twice_is_unstable_and_the_rest_is_judged(cluster, units):
    import ray

    from atrex.evaluate.ray_engine import RayEngine

    def watch(place, name):
        if name is not None and name.shape == "46":
            judge = next(j for j in engine._judges if j.place == place)
            ray.kill(judge.actor)

    engine = RayEngine("cpu", 1, TERMS, watch=watch)
    try:
        records = {r.shape: r for r in engine.judge([u for u in units if u.shape.id in ("15", "46")])}
    finally:
        engine.close()
    assert records["15"].verdict.status == "passed"
    assert (records["46"].verdict.status, records["46"].verdict.category) == ("error", "unstable")
    assert "two judges were lost" in records["46"].verdict.reason


@pytest.mark.slow
def test_a_run_on_the_cluster_leaves_one_run_directory_that_says_where_each_unit_was_judged(cluster, tmp_path):
    path = tmp_path / "rms_norm.py"
    path.write_text(HONEST)
    request = Request(
        [str(path)], shapes="15,46", seeds=1, timed_calls=20, held_out=False, readiness=False, engine="ray",
        out=tmp_path / "run",
    )  # fmt: skip
    outcome = run(request)
    assert sorted(r.shape for r in outcome.records) == ["15", "46"]
    assert {r.node for r in outcome.records} <= set(outcome.about["devices"])
    assert len((tmp_path / "run" / "units.jsonl").read_text().splitlines()) == 2
    assert outcome.about["closed"]
