"""`atrex serve`: pages over runs, campaigns and traces that follow them as they grow."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from atrex.errors import UserError


def serve(
    directory: Annotated[
        Path,
        typer.Argument(metavar="[DIR]", help="Runs, campaigns and trace data sets are looked for at and below it."),
    ] = Path("."),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback one needs a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token (mode 0600); or set ATREX_TOKEN.")
    ] = None,
) -> None:
    """The pages of `atrex report`, live: a page draws itself anew when what it shows has changed.

    Ends on Ctrl-C or SIGTERM, with status 0. Needs atrex[serve,report].
    """
    if not directory.is_dir():
        raise UserError(f"{directory}: no such folder; expected one with runs, campaigns or trace data sets below it")
    try:
        import uvicorn

        from atrex.report.site.server import App
    except ImportError:
        raise UserError("serve needs starlette and uvicorn: pip install 'atrex[serve,report]'") from None
    from atrex.report.site.live import Live
    from atrex.report.site.page import plotly_script
    from atrex.serve.access import address, listen, read_token

    plotly_script()  # said before the first page asks for it
    token = read_token(token_file, host)
    live = Live(directory.resolve())
    listening = listen(host, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both ways to end are one
    config = uvicorn.Config(
        App(live, token).asgi, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none",
        limit_concurrency=256, timeout_graceful_shutdown=1,
    )  # fmt: skip
    asked = ", with the token" if token else ""
    print(f"pages of {directory} at {address(host, listening)}/{asked}; Ctrl-C ends it", file=sys.stderr, flush=True)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()
