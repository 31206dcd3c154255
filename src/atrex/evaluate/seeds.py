"""Secret seeds: committed to when a run starts, revealed when it is closed."""

from __future__ import annotations

import hashlib
import hmac
import random
import secrets


class Seeds:
    """Every random choice of a run follows from one secret, so that a closed run can be replayed."""

    def __init__(self, secret: bytes | None = None):
        self.secret = secret if secret is not None else secrets.token_bytes(32)

    @property
    def commitment(self) -> str:
        """SHA-256 of the secret: published in run.json before anything is judged."""
        return hashlib.sha256(self.secret).hexdigest()

    def seed(self, *labels: object) -> int:
        """A 63-bit seed for what the labels name."""
        text = "/".join(map(str, labels)).encode()
        return int.from_bytes(hmac.digest(self.secret, text, "sha256")[:8], "little") >> 1

    def rng(self, *labels: object) -> random.Random:
        """A generator of the judge's own draws (call counts, positions, which outputs are compared)."""
        return random.Random(self.seed(*labels))
