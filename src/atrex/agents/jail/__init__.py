"""A place for a program that is not trusted: a workspace of its own, no view of this machine, one guarded way out.

`Jail` starts a program there and is its supervisor's handle. Inside (`enter`) are a network namespace that is empty
but for a listener, a process namespace of its own, read-only mounts, Landlock, a system call filter and no
capabilities: the same that hold a worker of the judge. What the program asks of the network comes through the
listener, which is handed to the supervisor, and is answered by its `Proxy`; a model's `Service` without its key ever
being in the jail.
"""

from __future__ import annotations

from atrex.agents.jail.ask import Ask
from atrex.agents.jail.jail import Jail, JailError, NoJail, Terms
from atrex.agents.jail.proxy import Proxy
from atrex.agents.jail.service import PLACEHOLDER, Service

__all__ = ["PLACEHOLDER", "Ask", "Jail", "JailError", "NoJail", "Proxy", "Service", "Terms"]
