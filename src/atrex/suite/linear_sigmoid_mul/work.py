"""Semantic work of linear_sigmoid_mul: the product is matrix work, the gating one fp32 operation an output element.

Bias and sigmoid are not counted, as published; neither could set the bound.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, hidden, features = (input_kwargs[name] for name in ("token_count", "hidden_size", "out_features"))
    columns = input_kwargs.get("columns", features)
    return Work(
        flops={"matrix": {"bf16": 2 * tokens * hidden * features}, "vector": {"fp32": tokens * columns}},
        bytes_read=2 * (tokens * hidden + features * hidden + features + tokens * columns),
        bytes_written=2 * tokens * columns,
    )
