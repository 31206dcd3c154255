import pytest
import torch

from atrex.errors import UserError
from atrex.problems.dtypes import NAMES, itemsize, short_name, torch_dtype


@pytest.mark.parametrize("name", NAMES)
def test_name_agrees_with_torch(name):
    assert torch_dtype(name).itemsize == itemsize(name)
    assert short_name(torch_dtype(name)) == ("fp32" if name == "tf32" else name)


def test_fp8_follows_the_chip():
    assert torch_dtype("fp8_e4m3") == torch.float8_e4m3fn
    assert torch_dtype("fp8_e4m3", "e4m3fnuz") == torch.float8_e4m3fnuz


def test_unknown_name():
    with pytest.raises(UserError, match="unknown dtype 'bfloat'"):
        torch_dtype("bfloat")
