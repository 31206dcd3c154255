"""Checks in processes: one that dies, starves or takes too long costs its shape, and nothing else."""

from __future__ import annotations

import os
import time

import pytest

from atrex.problems.load import SHIPPED, load_problem
from atrex.problems.workers import OVER_TIME, Lost, Task, Unrun, make_tasks, run_checks

FOLDER = SHIPPED / "silu_and_mul"
TASKS = [Task("silu_and_mul", FOLDER, ("0", "1", "2")), Task("silu_and_mul", FOLDER, ("3",))]


def name_it(problem, shape, device, seed):
    return f"{problem.operator} {shape.id} {device} {seed}"


def die_on_one(problem, shape, device, seed):
    if shape.id == "1":
        os.kill(os.getpid(), 9)
    return os.getpid()


def sleep_on_one(problem, shape, device, seed):
    if shape.id == "1":
        time.sleep(600)
    return shape.id


def starve_beside_others(problem, shape, device, seed):
    """What is seen only once is in the environment of the parent: the second try is told by the file."""
    path = f"{os.environ['ATREX_TEST_TRIES']}/{shape.id}"
    tried = os.path.exists(path)
    open(path, "a").close()
    return "fits" if tried else "starved"


def found(check, **options):
    return {(operator, shape): result for operator, shape, result in run_checks(TASKS, check, "cpu", 7, **options)}


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_shape_is_checked_once(jobs):
    assert found(name_it, jobs=jobs) == {("silu_and_mul", s): f"silu_and_mul {s} cpu 7" for s in "0123"}


def test_a_process_that_dies_costs_its_shape_alone():
    results = found(die_on_one, jobs=2)
    assert results["silu_and_mul", "1"] == Lost("its process ended with -9")
    assert all(isinstance(results["silu_and_mul", s], int) for s in "023")


@pytest.mark.slow
def test_at_the_deadline_what_is_left_is_not_run():
    started = time.monotonic()
    results = found(sleep_on_one, deadline=started + 12)
    assert time.monotonic() - started < 20
    assert results["silu_and_mul", "0"] == "0"
    assert results["silu_and_mul", "1"] == results["silu_and_mul", "2"] == Unrun(OVER_TIME)


@pytest.mark.parametrize(("smallest_first", "order"), [(False, "2103"), (True, "3012")])
def test_the_largest_come_first_unless_asked_otherwise(smallest_first, order):
    tasks = [Task("silu_and_mul", FOLDER, ("3",), 1), Task("silu_and_mul", FOLDER, ("2", "1", "0"), 9)]
    found = run_checks(tasks, name_it, "cpu", 7, smallest_first=smallest_first)
    assert "".join(shape for _, shape, _ in found) == order


@pytest.mark.slow
def test_what_starved_beside_others_is_tried_once_more_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("ATREX_TEST_TRIES", str(tmp_path))
    assert set(found(starve_beside_others, jobs=2, again=lambda result: result == "starved").values()) == {"fits"}


def test_large_shapes_are_tasks_of_their_own_and_none_is_lost():
    problem = load_problem(SHIPPED / "rms_norm")
    tasks = make_tasks(problem, problem.shapes.values())
    ids = [shape_id for task in tasks for shape_id in task.shapes]
    assert sorted(ids) == sorted(problem.shapes)
    assert tasks[0].shapes == ("14",) and tasks[0].memory > tasks[-1].memory
