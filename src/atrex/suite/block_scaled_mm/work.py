"""Semantic work of block_scaled_mm.

The product is matrix work at the operands' dtype. Per output and k-block, two scalings and all but one of the
additions of the blocks' partial sums are fp32 vector work: 3 k/group_k - 1, the published count. A kernel that
multiplies the two scales once a block of group_n columns needs 2 k/group_k - 1 and little more. No ceiling is higher
for the difference: beside the products, vector work of either count sets none on any listed chip.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    m, n, k = (input_kwargs[name] for name in ("m", "n", "k"))
    blocks = k // init_kwargs["group_k"]
    return Work(
        flops={"matrix": {"fp8_e4m3": 2 * m * n * k}, "vector": {"fp32": m * n * (3 * blocks - 1)}},
        bytes_read=m * k + n * k + 4 * m * blocks + 4 * (n // init_kwargs["group_n"]) * blocks,
        bytes_written=4 * m * n,
    )
