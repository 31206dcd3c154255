import pytest

from atrex import dsls
from atrex.compile.outcome import Outcome, counts
from atrex.dsls.offline import Attempts, parse_target
from atrex.errors import UserError


@pytest.mark.parametrize(
    ("name", "arch", "chip", "backend", "units", "warp"),
    [
        ("sm_90a", "sm_90", "H200", "cuda", 132, 32),
        ("sm_100f", "sm_100", "B200", "cuda", 148, 32),
        ("H20", "sm_90", "H20", "cuda", 78, 32),
        ("gfx942", "gfx942", "MI300X", "hip", 304, 64),
        ("mi308x", "gfx942", "MI308X", "hip", 80, 64),
    ],
)
def test_a_target_is_an_architecture_or_a_chip(name, arch, chip, backend, units, warp):
    target = parse_target(name)
    assert (target.arch, target.chip.id, target.backend, target.units, target.warp_size) == (
        arch, chip, backend, units, warp,
    )  # fmt: skip


def test_a_target_without_a_chip_file_compiles_without_figures():
    assert parse_target("sm_86").units is None and parse_target("sm_86").shared_bytes == 99 << 10


@pytest.mark.parametrize("name", ["sm90", "XPU-A", "hopper", ""])
def test_anything_else_is_no_target(name):
    with pytest.raises(UserError, match="expected cpu, an architecture such as sm_90a or gfx942, or a chip"):
        parse_target(name)


@pytest.mark.parametrize(
    ("name", "arch"),
    [("sm_90", "sm_90a"), ("H20", "sm_90a"), ("sm_100f", "sm_100f"), ("L40S", "sm_89"), ("sm_80", "sm_80")],
)
def test_cute_dsl_is_given_the_architecture_with_its_own_instructions(name, arch, tmp_path):
    assert dsls.get("cutedsl").offline_env(parse_target(name), tmp_path) == {"CUTE_DSL_ARCH": arch}


def artifact(name, sha="", reason=""):
    return {"name": name, "kind": "cubin", "sha256": sha, "bytes": 1, "reason": reason}


def outcome(shape, status, *artifacts):
    return Outcome("c.py", "rms_norm", shape, "triton", "sm_90a", status, artifacts=list(artifacts))


def test_the_compile_rate_is_over_what_could_be_told():
    shared = artifact("a", "1")
    found = counts(
        [
            outcome("0", "compiled", shared, artifact("b", "2"), artifact("b", reason="too large")),
            outcome("1", "compiled", shared),
            outcome("2", "failed", artifact("c", reason="syntax")),
            outcome("3", "undetermined"),
        ]
    )
    assert found["shapes"] == {"compiled": 2, "failed": 1, "undetermined": 1, "rate": 2 / 3}
    assert found["artifacts"] == {"compiled": 2, "failed": 2, "rate": 0.5}


def test_a_rate_over_nothing_is_not_zero():
    assert counts([outcome("0", "undetermined")])["shapes"]["rate"] is None


def test_what_one_shape_compiled_is_not_another_s():
    log = Attempts()
    log.begin()
    log.compiled("k", "cubin", b"1")
    log.compiled("k", "cubin", b"1")
    log.failed("k", "cubin", ValueError("line one\n line two"))
    assert [a.reason for a in log.all()] == ["", "ValueError: line one line two"]
    log.begin()
    assert log.all() == []
