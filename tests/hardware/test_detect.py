"""Device strings and device names."""

import pytest
import torch

from atrex.errors import UserError
from atrex.hardware.detect import check_device, describe, detect, match_chip, parse_device

GB = 10**9


@pytest.mark.parametrize(
    ("name", "memory", "chip"),
    [
        ("NVIDIA H200", 150_754_820_096, "H200"),
        ("NVIDIA H100 80GB HBM3", 85_045_346_304, "H100"),
        ("NVIDIA H20", 101_971_263_488, "H20"),
        ("NVIDIA A100-SXM4-80GB", 85_095_874_560, "A100"),
        ("NVIDIA L40S", 47_810_936_832, "L40S"),
        ("NVIDIA B200", 191_514_476_544, "B200"),
        ("AMD Instinct MI300X", 205_822_885_888, "MI300X"),
        ("AMD Instinct MI300X OAM", 205_822_885_888, "MI300X"),
        ("AMD Instinct MI308X", 205_822_885_888, "MI308X"),
        ("AMD Instinct MI355X", 309_220_868_096, "MI355X"),
        ("NVIDIA A100-SXM4-40GB", 42_297_786_368, None),
        ("NVIDIA H100 PCIe", 85_045_346_304, None),
        ("NVIDIA H200 NVL", None, "H200"),
        ("NVIDIA GeForce RTX 4090", 25_000_000_000, None),
    ],
)
def test_chip_from_the_drivers_name_and_memory(name, memory, chip):
    assert match_chip(name, memory) == chip


def test_cpu_is_the_cpu_chip():
    assert detect("cpu") == "cpu"
    assert describe("cpu").units >= 1


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cpu:1", "rocm:0"])
def test_unknown_device_string(device):
    with pytest.raises(UserError, match="expected cpu or cuda:N"):
        parse_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_cuda_without_a_device_says_why():
    with pytest.raises(UserError, match=r"device cuda:0: no CUDA device here \(torch .*\)$"):
        check_device("cuda:0")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_index_past_the_last_one():
    with pytest.raises(UserError, match="no such device"):
        check_device("cuda:99")
