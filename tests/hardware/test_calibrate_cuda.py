"""Calibration of a GPU."""

import pytest
import torch

from atrex.hardware.calibrate import calibrate, gpu_chip
from atrex.hardware.chip import load_chip
from atrex.hardware.detect import detect

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_measured_ceilings_lie_under_the_cited_ones_and_near_them():
    record = calibrate("cuda:0")
    cited = load_chip(detect("cuda:0"))
    measured = gpu_chip(cited, record)
    assert 0.5 < measured.peaks["matrix"]["bf16"] / cited.peaks["matrix"]["bf16"] < 1.05
    assert 0.7 < measured.memory_bandwidth / cited.memory_bandwidth < 1.05
    assert 0 < record["measurements"]["floor.launch"]["best"] < 50
    if cited.fp8:
        assert measured.peaks["matrix"]["fp8_e4m3"] > 1.2 * measured.peaks["matrix"]["bf16"]
