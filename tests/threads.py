"""One thread of torch for what is too small to gain by more."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Blocks and products this small lose more to waiting for threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
