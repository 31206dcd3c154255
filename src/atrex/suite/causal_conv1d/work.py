"""Semantic work of causal_conv1d: per output, two operations a tap, and four for bias and SiLU; without SiLU, the bias
is where the sum starts and none are added.

Writes count the state, which production updates in place; the published figure leaves it out, and with it the only
result that the next call of a sequence needs. A depthwise filter of four taps is no matrix product: as a banded one it
would be mostly zeros.
"""

from atrex.roofline.work import Work


def work(init_kwargs: dict, input_kwargs: dict) -> Work:
    tokens, channels, width = (input_kwargs[name] for name in ("token_count", "dim", "width"))
    state = 2 * channels * (width - 1)
    activation = 4 if init_kwargs["activation"] else 0
    return Work(
        flops={"vector": {"fp32": tokens * channels * (2 * width + activation)}},
        bytes_read=2 * tokens * channels + 2 * channels * width + 2 * channels + state,
        bytes_written=2 * tokens * channels + state,
    )


def published(init_kwargs: dict, input_kwargs: dict) -> tuple[int, int, int]:
    """The release does not count the state that production writes."""
    ours = work(init_kwargs, input_kwargs)
    state = 2 * input_kwargs["dim"] * (input_kwargs["width"] - 1)
    return ours.total_flops, ours.bytes_read, ours.bytes_written - state
