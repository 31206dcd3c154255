"""Gluon: Triton's lower layer, where the author lays out registers and shared memory. Hooks are Triton's own.

A kernel is Gluon's when its function was decorated by `gluon.jit`; plain Triton kernels of the same candidate are
another DSL here, and the other way round.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from atrex.dsls.base import register
from atrex.dsls.triton import TritonFamily, TritonSession

if TYPE_CHECKING:
    from atrex.dsls.offline import Target


class GluonSession(TritonSession):
    """As Triton's, with Gluon's functions as the target."""

    gluon = True


@register
class Gluon(TritonFamily):
    """Gluon on NVIDIA and AMD GPUs."""

    name = "gluon"
    imports = ("triton.experimental.gluon",)
    session = GluonSession
    install = "pip install 'triton>=3.6'"
    constraints = (
        "Write every computation as @gluon.jit kernels defined in this one file, with explicit layouts "
        "(gl.BlockedLayout and so on; a warp has 32 lanes on NVIDIA and 64 on AMD's gfx9). torch may allocate outputs "
        "and take views; it must not compute. No @triton.jit kernels, no vendor library, no torch.compile, no kernels "
        "imported from other packages."
    )

    def lacks(self, target: Target) -> str | None:
        """Gluon's language as it is since Triton 3.6; what 3.4 and 3.5 call Gluon is another."""
        if found := super().lacks(target):
            return found
        release = tuple(int(part) for part in version("triton").split(".")[:2])
        return None if release >= (3, 6) else f"gluon needs Triton 3.6 or newer: {self.install}"
