"""Semantic work of fp32_mm."""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    m, n, k = (input_kwargs[name] for name in ("m", "n", "k"))
    return Work(flops={"matrix": {"fp32": 2 * m * n * k}}, bytes_read=4 * (m * k + k * n), bytes_written=4 * m * n)
