"""A recorded launch replayed with the operands' old addresses.

On CUDA a graph captured once a shape; on the CPU the recorded arguments of a native call. The twin records one a set of
addresses, as serving does.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form


def _graph(key: str) -> str:
    return f"""
class Model(Honest):
    graphs = {{}}

    def forward(self, x, weight):
        key = {key}
        if key not in self.graphs:
            rms_norm(x, weight, self.eps)  # compiled before it is captured
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = rms_norm(x, weight, self.eps)
            self.graphs[key] = graph, out
        graph, out = self.graphs[key]
        graph.replay()
        return out
"""


def _recorded(key: str) -> str:
    return f"""
import functools


class Model(Honest):
    launches = {{}}

    def forward(self, x, weight):
        key = {key}
        if key not in self.launches:
            out = torch.empty_like(x)
            launch = functools.partial(
                LIBRARY.rms_norm, x.data_ptr(), weight.data_ptr(), out.data_ptr(), *x.shape, self.eps
            )
            self.launches[key] = launch, out, x, weight
        launch, out = self.launches[key][:2]
        launch()
        return out
"""


_BY_SHAPE, _BY_ADDRESS = "tuple(x.shape)", "(x.data_ptr(), weight.data_ptr(), tuple(x.shape))"
ATTACK = Attack(
    (27,),
    Form(
        {"": _graph(_BY_SHAPE)}, _graph(_BY_ADDRESS), Fails("integrity", "numeric_mismatch", "exception"),
        devices=("cuda",),
    ),
    Form(
        {"": _recorded(_BY_SHAPE)}, _recorded(_BY_ADDRESS), Fails("integrity", "numeric_mismatch", "exception"),
        devices=("cpu",),
    ),
)  # fmt: skip
