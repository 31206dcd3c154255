"""fp8_blockscale_fused_moe: the dimensions of fused_moe."""

from __future__ import annotations

from atrex.traces.mining.operators.fused_moe import dims as dims
from atrex.traces.mining.operators.fused_moe import kwargs as kwargs
