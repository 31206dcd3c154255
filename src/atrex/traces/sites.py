"""Launch sites: the distinct (names around a launch, operands of its innermost operator). Records point at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from atrex.traces import raw
from atrex.traces.linking import Context, Linked


@dataclass(frozen=True)
class Site:
    """`dims`, `dtypes`, `concrete`: JSON text as the profiler wrote it, None where it did not."""

    context: Context
    dims: str | None = None
    dtypes: str | None = None
    concrete: str | None = None


def sites_of(linked: Linked, strings: raw.Strings) -> tuple[list[Site], np.ndarray]:
    """(the distinct sites of a trace, the site of each launch or -1)."""
    launches = linked.launches
    op = launches["op"].to_numpy()
    columns = {"context": launches["context"].to_numpy()}
    for name in ("dims", "dtypes", "concrete"):
        values = linked.nodes[name].to_numpy()
        columns[name] = np.where(op >= 0, values[np.maximum(op, 0)], -1) if len(values) else np.full(len(op), -1)
    keys = pl.DataFrame(columns)
    distinct = keys.unique(maintain_order=True).with_row_index("site")
    site_of = keys.join(distinct, on=list(columns), how="left", maintain_order="left")["site"].cast(pl.Int64).to_numpy()

    def text(number: int) -> str | None:
        return strings[number] if number >= 0 else None

    sites = [
        Site(linked.contexts[context] if context >= 0 else Context(), text(dims), text(dtypes), text(concrete))
        for _, context, dims, dtypes, concrete in distinct.iter_rows()
    ]
    return sites, np.where(columns["context"] >= 0, site_of, -1) if len(op) else np.empty(0, dtype=np.int64)
