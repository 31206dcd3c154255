"""`atrex agents` and `atrex generate`: candidates by coding agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

import atrex
from atrex.errors import UserError

PolicyOption = Literal["default", "extended"]


def agents(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Coding agents: which are here, and what each needs."""
    from atrex.agents.base import get, names

    rows = [{"agent": name, "needs": [vars(need) for need in get(name).needs()]} for name in names()]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("agent", "needs", "", "how to get it", title="Agents")
    for row in rows:
        for i, need in enumerate(row["needs"]):
            here = "here" if need["here"] else "missing"
            table.add_row(row["agent"] if i == 0 else "", need["what"], here, "" if need["here"] else need["how"])
    Console().print(table)


def generate(
    agent: Annotated[str, typer.Option(help="claude, codex, api:MODEL, command:CMD, manual or tuner.")],
    dsl: Annotated[str, typer.Option(help="The DSL to write in.")],
    out: Annotated[Path, typer.Option(help="Where candidates, transcripts and records go.")],
    problem: Annotated[list[str] | None, typer.Option(help="An operator; may be repeated.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All operators of the suite.")] = False,
    suite_path: Annotated[Path | None, typer.Option("--suite", help="Another suite.")] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture to write for, such as sm_90 or gfx942.")] = None,
    chip: Annotated[str | None, typer.Option(help="Chip to write for, such as H200.")] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Let the agent use this machine's GPU.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Problems at a time.")] = 1,
    samples: Annotated[int, typer.Option(min=1, help="Candidates per problem.")] = 1,
    model: Annotated[str | None, typer.Option(help="The model that the agent is to use.")] = None,
    base_url: Annotated[str | None, typer.Option(help="Where the model answers.")] = None,
    policy: Annotated[PolicyOption, typer.Option(help="Tools: default, or extended (not comparable).")] = "default",
    budget_usd: Annotated[float | None, typer.Option(help="Dollars per problem.")] = None,
    budget_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens in and out per problem.")] = None,
    timeout: Annotated[float, typer.Option(help="Minutes per problem.")] = 60.0,
    seen: Annotated[str | None, typer.Option(help="A note on what the model may have seen.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per problem.")] = False,
) -> None:
    """Let an agent write candidates. `atrex eval OUT` judges them."""
    from atrex.agents.base import Choice, make
    from atrex.evaluate.rundir import now
    from atrex.generate.accounting import Budget
    from atrex.generate.prompt import template_hash
    from atrex.generate.records import About, load_records
    from atrex.generate.run import generate as run
    from atrex.generate.run import open_run
    from atrex.generate.solve import Solver, Work
    from atrex.generate.target import target
    from atrex.problems.load import load_suite, suite_hash

    suite = load_suite(suite_path)
    operators = _operators(problem, every, list(suite.problems))
    choice = Choice.parse(agent, model, base_url)
    aim = target(dsl, arch, chip)
    worker = make(choice)
    if timeout <= 0:
        raise UserError(f"--timeout {timeout:g}: expected minutes, more than none")
    if budget_usd is not None and budget_usd <= 0:
        raise UserError(f"--budget-usd {budget_usd:g}: expected dollars, more than none")
    budget = Budget(budget_usd, budget_tokens, 60.0 * timeout)
    about = About(
        agent=agent,
        model=model,
        base_url=base_url,
        dsl=dsl,
        arch=aim.arch,
        device=aim.device if gpu or aim.device == "cpu" else "none",
        chip=aim.chip,
        policy=policy,
        prompt_sha256=template_hash(dsl),
        suite_version=suite.version,
        suite_hash=suite_hash(suite_path),
        samples=samples,
        operators=operators,
        budget=vars(budget),
        seen=seen,
        created=now(),
        atrex=atrex.__version__,
    )
    done = open_run(out, about, resume)
    todo = [(op, k) for op in operators for k in range(samples) if (op, k) not in done]
    solver = Solver(Work(out.resolve(), worker, choice, dsl, aim, policy, budget, gpu))
    total, count = len(todo), 0

    def finished(record) -> None:
        nonlocal count
        count += 1
        print(record.model_dump_json() if as_json else f"[{count}/{total}]  {_line(record)}", flush=True)

    try:
        run(out, solver, suite, todo, jobs, finished)
    except KeyboardInterrupt:
        kept = len(load_records(out))
        raise UserError(
            f"interrupted; {kept} of {total + len(done)} finished and kept, --resume continues in {out}"
        ) from None
    if not as_json:
        left = f", {len(done)} done before" if done else ""
        print(f"{total} candidates asked for{left}; judge them with: atrex eval {out}")


def _operators(problem: list[str] | None, every: bool, known: list[str]) -> list[str]:
    if bool(problem) == every:
        raise UserError("--problem or --all: expected one of the two")
    for name in problem or ():
        if name not in known:
            raise UserError(f"--problem {name}: unknown operator; expected one of {', '.join(known)}")
    return list(dict.fromkeys(problem)) if problem else known


def _line(record) -> str:
    parts = [record.operator, f"sample {record.sample}" if record.sample else "", record.ended]
    parts.append("candidate" if record.candidate_sha256 else "no candidate")
    parts.append(f"{record.seconds:.0f} s")
    if record.usage:
        parts.append(f"{record.usage.tokens:,} tokens")
    if record.cost_usd is not None:
        parts.append(f"${record.cost_usd:.3f}")
    return "  ".join(part for part in parts if part) + (f"  ({record.reason})" if record.reason else "")
