"""Who may ask a service here: a token, hosts that mean this machine alone, and the socket it listens on."""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
import stat
from pathlib import Path
from urllib.parse import urlsplit

from atrex.errors import UserError

_SHORTEST_TOKEN = 16


def is_loopback(host: str) -> bool:
    """Whether a name or address of a host can mean nothing but this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def sent_to_loopback(header: str) -> bool:
    """Whether a request's Host header names this machine.

    A page in a browser here can send requests too, under a name of its own that points to this machine.
    """
    try:
        return is_loopback(urlsplit(f"//{header}").hostname or "")
    except ValueError:
        return False


def bears(authorization: str, token: bytes) -> bool:
    """Whether an Authorization header is Bearer and the token."""
    scheme, _, given = authorization.partition(" ")
    return hmac.compare_digest(given.strip().encode(), token) and scheme.lower() == "bearer"


def read_token(path: Path | None, host: str) -> str | None:
    """The token in a file of mode 0600, else that of ATREX_TOKEN, else None.

    Raises UserError for one that others can read or that is too short, and where there is none and `host` is not
    loopback.
    """
    given = os.environ.pop("ATREX_TOKEN", None)  # no process that is started from here needs it
    if path is not None:
        try:
            if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise UserError(f"--token-file {path}: others can read it; chmod 600 {path}")
            given = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--token-file {path}: cannot be read ({error})") from None
    if given is None:
        if not is_loopback(host):
            raise UserError(
                f"--host {host}: other machines can reach it; give a token with --token-file or ATREX_TOKEN"
            )
        return None
    if len(given) < _SHORTEST_TOKEN or not given.isascii() or any(c.isspace() for c in given):
        where = f"--token-file {path}" if path else "ATREX_TOKEN"
        raise UserError(f"{where}: expected at least {_SHORTEST_TOKEN} ASCII characters without spaces")
    return given


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes any free one. Raises UserError."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UserError(f"--host {host} --port {port}: cannot listen there ({error.strerror or error})") from None


def address(host: str, listening: socket.socket) -> str:
    """The http address of a listening socket."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
