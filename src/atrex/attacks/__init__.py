"""Known ways to fool a judge of kernels, each beside an honest twin: one module an attack, run by `atrex attacks`.

A module declares `ATTACK`. Its cheats must come out as declared, and its twin, honest code that looks much the same,
must pass. `harness` declares, writes out and runs them; `candidates` holds the honest kernels that most of them start
from. A new attack is a new module here and nothing else.
"""

from __future__ import annotations
