"""What attack modules are declared with, and what runs them."""

from __future__ import annotations

from atrex.attacks.harness.declare import Attack, Form
from atrex.attacks.harness.expect import Fails, NoGain, Shortcut, either

__all__ = ["Attack", "Fails", "Form", "NoGain", "Shortcut", "either"]
