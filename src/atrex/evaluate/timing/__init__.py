"""How one call is timed, per kind of device. The worker times candidates with it, the judge the null forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atrex.evaluate.timing.protocol import Protocol

if TYPE_CHECKING:
    import torch


def protocol_for(device: torch.device, spec: dict[str, Any]) -> Protocol:
    """The protocol of `device`; `spec` carries what the judge prepared for it (the CPU's native flush library)."""
    if device.type == "cuda":
        from atrex.evaluate.timing.cuda import CudaProtocol

        return CudaProtocol(device)
    from atrex.evaluate.timing.host import HostProtocol

    return HostProtocol(spec["flush_library"], spec["sweep_bytes"])
