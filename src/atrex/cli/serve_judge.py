"""`atrex serve-judge`: the judge as a service."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.errors import UserError
from atrex.serve.access import address, listen, read_token


def serve_judge(
    device: Annotated[str | None, typer.Option(help="cpu, cuda:N, cuda:0,cuda:1, cuda:all; default: cuda:0.")] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback one needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8600,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token (mode 0600); or set ATREX_TOKEN.")
    ] = None,
    suite: Annotated[Path | None, typer.Option(help="A suite or problem folder; default: the shipped suite.")] = None,
    max_source: Annotated[int, typer.Option(min=1, help="Bytes of one candidate.")] = 256 << 10,
    max_units: Annotated[int, typer.Option(min=1, help="Units of one request, held-out ones included.")] = 64,
    max_seeds: Annotated[int, typer.Option(min=1, help="Randomized input sets per unit.")] = 20,
    max_seconds: Annotated[float, typer.Option(help="Judging of one request.")] = 600.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests that wait.")] = 64,
    compile_budget: Annotated[float, typer.Option(help="Seconds for one shape's import and first forward.")] = 180.0,
    execution_budget: Annotated[float, typer.Option(help="Seconds for one forward.")] = 10.0,
    performance_budget: Annotated[float, typer.Option(help="Seconds for all timed forwards of a shape.")] = 10.0,
) -> None:
    """Judge candidates that come by HTTP: POST /judge with {"candidate": source, "problem": operator}.

    Ends on Ctrl-C or SIGTERM, with status 0. Needs atrex[serve].
    """
    for name, seconds in (
        ("max-seconds", max_seconds),
        ("compile-budget", compile_budget),
        ("execution-budget", execution_budget),
        ("performance-budget", performance_budget),
    ):
        if not seconds > 0:
            raise UserError(f"--{name} {seconds:g}: expected a number of seconds above 0")
    try:
        import uvicorn

        from atrex.serve.http import App
    except ImportError:
        raise UserError("serve-judge needs starlette and uvicorn: pip install 'atrex[serve]'") from None
    token = read_token(token_file, host)

    from atrex.evaluate.budgets import Budgets
    from atrex.evaluate.confine import warning
    from atrex.evaluate.engine import Terms
    from atrex.evaluate.run import Request, resolve_device
    from atrex.evaluate.seeds import Seeds
    from atrex.hardware.detect import default_device
    from atrex.problems.load import load_suite
    from atrex.serve.order import Limits
    from atrex.serve.service import Service

    devices = [resolve_device(name) for name in Request([], device=device or default_device()).devices]
    problems = load_suite(suite)
    budgets = Budgets(compile_budget, execution_budget, performance_budget)
    hidden = tuple(str(path.resolve()) for path in (token_file, suite) if path)
    terms = Terms(Seeds().secret, 1, budgets, suite=suite, hidden=hidden)
    limits = Limits(max_source, max_units, max_seeds, max_seconds, max_queue)
    listening = listen(host, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both ways to end are one
    service = None
    try:
        service = Service([str(d) for d in devices], terms, limits)
        if line := warning(service.measured["confinement"]):
            print(line, file=sys.stderr)
        app = App(service, problems, devices[0].type, budgets, token)

        class Server(uvicorn.Server):
            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                service.refuse()  # whoever waits gets an answer, and uvicorn an end of its connections
                await super().shutdown(sockets)

        config = uvicorn.Config(
            app.asgi, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
            limit_concurrency=2 * max_queue + 32, timeout_graceful_shutdown=5,
        )  # fmt: skip
        named = ", ".join(str(d) for d in devices)
        where = address(host, listening)
        print(f"judging on {named} at {where}: POST /judge, GET /health; Ctrl-C ends it", file=sys.stderr, flush=True)
        Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave judges behind
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        listening.close()
        if service:
            service.close()
