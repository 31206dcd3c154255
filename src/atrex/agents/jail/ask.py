"""One ask of the network, as it is noted, and how a host is written down."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Ask:
    """What was asked for: where to, whether it was let through, bytes either way, seconds.

    Of a request to the model's service also `path` without its query, the `model` that was asked and the HTTP `status`
    of the answer, and the `tokens` in and out that it tells of. Headers and bodies are never kept.
    """

    host: str
    port: int
    allowed: bool
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    error: str | None = None
    path: str | None = None
    model: str | None = None
    status: int | None = None
    tokens: int | None = None


def parse_host(text: str) -> tuple[str, int]:
    """("host", port) of "host", "host:port" or an address with a scheme. Raises ValueError."""
    parts = urlsplit(text if "://" in text else f"https://{text}")
    if not parts.hostname or (parts.scheme not in _PORTS):
        raise ValueError(f"{text!r}: expected a host, host:port or an http(s) address")
    return parts.hostname.lower(), parts.port or _PORTS[parts.scheme]
