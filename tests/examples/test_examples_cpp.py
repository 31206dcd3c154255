import importlib.util
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.alone

CANDIDATES = Path(__file__).parents[2] / "examples" / "candidates"
EPS = 1e-6


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path_factory.mktemp("extensions")))

    def module(name):
        path = CANDIDATES / f"{name}.py"
        spec = importlib.util.spec_from_file_location("example_" + name.replace("/", "_"), path)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    yield module
    patch.undo()


@pytest.fixture(scope="module")
def rms_norm(load):
    return load("cpp/rms_norm").Model(EPS)


@pytest.fixture(scope="module")
def silu_and_mul(load):
    return load("cpp/silu_and_mul").Model()


def norm(x, weight):
    wide = x.double()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS) * weight.double()


def assert_rounded(got, expected):
    """Within one step of bfloat16 (2^-8 of the value): float32 inside, one rounding at the end."""
    assert got.dtype == torch.bfloat16
    assert ((got.double() - expected).abs() <= expected.abs() * 2**-8 + 1e-30).all()


@pytest.mark.parametrize(("rows", "hidden"), [(1, 5120), (3, 128), (7, 1280), (53, 7168), (5, 1000), (2049, 1152)])
def test_rms_norm_rounds_once(rms_norm, rows, hidden):
    torch.manual_seed(rows)
    x = (torch.randn(rows, hidden) * torch.logspace(-3, 3, rows)[:, None]).bfloat16()
    weight = torch.randn(hidden).bfloat16()
    assert_rounded(rms_norm(x, weight), norm(x, weight))


@pytest.mark.parametrize(("rows", "width"), [(1, 1536), (183, 2048), (7, 5120), (5, 1002), (1100, 8192)])
def test_silu_and_mul_rounds_where_the_operator_does(silu_and_mul, rows, width):
    torch.manual_seed(rows)
    x = (4 * torch.randn(rows, width)).bfloat16()
    gate, up = x.double().chunk(2, -1)
    got, expected = silu_and_mul(x).double(), (gate * torch.sigmoid(gate)).bfloat16().double() * up
    # Two roundings; where the inner one falls on a tie, float32 may take the other neighbour.
    assert ((got - expected).abs() <= expected.abs() * 2**-7 + 1e-30).all()


def test_silu_and_mul_keeps_what_is_not_finite(silu_and_mul):
    gate = torch.tensor([-500.0, -90.0, 0.0, 500.0, float("nan"), float("inf")])
    x = torch.cat([gate, torch.ones(6)])[None].bfloat16()
    got = silu_and_mul(x).float()[0]
    assert got[:2].abs().max() < 1e-30 and got[2] == 0 and got[3] == 500 and got[4].isnan() and got[5].isinf()


def test_rms_norm_refuses_other_types(rms_norm):
    with pytest.raises(TypeError, match="expected bfloat16"):
        rms_norm(torch.ones(2, 128), torch.ones(128))


def test_the_torch_fallback_is_correct(load):
    x, weight = torch.randn(9, 1152).bfloat16(), torch.randn(1152).bfloat16()
    assert_rounded(load("torch/rms_norm").Model(EPS)(x, weight), norm(x, weight))


def test_the_wrong_example_is_right_but_for_its_tail(load, monkeypatch):
    x, weight = torch.randn(130, 256).bfloat16(), torch.randn(256).bfloat16()
    poisoned = torch.full(x.shape, float("nan"), dtype=torch.bfloat16)
    model = load("wrong/rms_norm").Model(EPS)
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: poisoned)
    got = model(x, weight)
    assert_rounded(got[:128], norm(x, weight)[:128])
    assert got[128:].isnan().all()
