"""The emulator tells kernels that are right from kernels that a device would run wrongly, at times or always."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.replaced import replaced

from tests.kernels import asm, emulator, hopper, machine
from tests.kernels.faulty import ARITHMETIC, GROUPS, RING
from tests.kernels.machine import Deadlock, Fault, OutOfBounds, Race
from tests.kernels.values import Pointer, Value, value

SEEDS = range(6)
REPAIR = Path(__file__).parents[1] / "examples"  # of Triton's interpreter


def operands(rows=37, n=100, k=420):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(m, k, generator=g).bfloat16() for m in (rows, n)]


def broken(source, *changes):
    return emulator.execute(replaced(source, changes), "kernel")


def run(module, x, w, seed=0):
    with emulator.stream(seed):
        return module.run(x, w)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("slots", [1, 3])
def test_a_ring_of_copies_and_products_is_right_in_any_order(seed, slots):
    module, (x, w) = broken(RING), operands(n=104, k=424)
    module.SLOTS = slots
    for got in run(module, x, w, seed):
        torch.testing.assert_close(got, x.float() @ w.float().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_of_copies_and_an_early_launch_are_right(seed):
    x, w = operands(n=64)
    parts, out = run(broken(GROUPS), x, w, seed)
    torch.testing.assert_close(parts, x.float() @ w.float().T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(out, parts.sum(1), rtol=1e-4, atol=1e-4)


def test_an_order_is_drawn_from_its_seed(monkeypatch):
    def order(seed):
        seen, resume = [], machine.Program._resume

        def noted(program, warps):
            seen.append(program.warps.index(warps))
            resume(program, warps)

        with monkeypatch.context() as patch:
            patch.setattr(machine.Program, "_resume", noted)
            run(broken(RING), *operands(n=104, k=424), seed)
        return seen

    assert order(1) == order(1) != order(2)


def verdict(source, changes, n=104, k=424):
    """What a broken kernel comes to with each seed: a fault's kind, or whether its outputs are right."""
    module, (x, w), found = broken(source, *changes), operands(n=n, k=k), []
    expected = x.float() @ w.float().T
    for seed in SEEDS:
        try:
            got = run(module, x, w, seed)
        except Fault as fault:
            found.append(type(fault))
            continue
        right = [torch.allclose(one, expected, rtol=1e-4, atol=1e-4) for one in got if one.shape == expected.shape]
        found.append("right" if all(right) else "wrong")
    return found


FULL = "        mbarrier.wait(full.index(slot), phase)\n"
EMPTY = "        mbarrier.wait(empty.index(slot), phase)\n"
WAIT = "        sums = warpgroup_mma_wait(0, deps=[sums])\n        mbarrier.arrive(empty.index(slot))\n"
CARRY = "gl.where(last, phase ^ 1, phase)\n    row ="


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        pytest.param([(FULL, "")], {Race, Deadlock}, id="no wait for what arrives"),
        pytest.param([(EMPTY, "")], {Race, Fault}, id="no wait for a free slot"),
        pytest.param([("    phase = 0\n", "    phase = 1\n")], {Race, Deadlock}, id="consumer's phase"),
        pytest.param([("    phase = 1\n", "    phase = 0\n")], {Deadlock}, id="producer's phase"),
        pytest.param([(CARRY, "phase\n    row =")], {Deadlock}, id="a phase that never turns"),
        pytest.param([(WAIT, "        mbarrier.arrive(empty.index(slot))\n"
                             "        sums = warpgroup_mma_wait(0, deps=[sums])\n")],
                     {Race, "right"}, id="a slot given back before its product has ended"),
        pytest.param([("        mbarrier.arrive(empty.index(slot))\n", "")], {Deadlock}, id="no slot given back"),
        pytest.param([("x.block_type.nbytes + w.block_type.nbytes", "x.block_type.nbytes")],
                     {Race, Deadlock}, id="fewer bytes expected than copied"),
        pytest.param([("x.block_type.nbytes + w.block_type.nbytes", "2 * (x.block_type.nbytes + w.block_type.nbytes)")],
                     {Deadlock}, id="more bytes expected than copied"),
        pytest.param([("mask=(row < rows) & (inside < N)", "mask=row < rows")], {OutOfBounds},
                     id="no mask of columns"),
        pytest.param([("mask=(row < rows) & (inside < N)", "mask=(row < rows - 1) & (inside < N)")], {"wrong"},
                     id="a mask that is too short"),
        pytest.param([("mask=(row < rows) & (inside < N)", "mask=inside < N")], {OutOfBounds}, id="no mask of rows"),
        pytest.param([("    fence_async_shared()\n", "")], {Race}, id="no fence"),
        pytest.param([("    tma.store_wait(0)\n", "")], {Race}, id="no wait for a store"),
        pytest.param([("mbarrier.init(empty.index(slot), count=1)", "mbarrier.init(empty.index(slot), count=2)")],
                     {Deadlock}, id="a count that is never reached"),
    ],
)  # fmt: skip
def test_a_broken_ring_is_told(changes, kinds):
    found = set(verdict(RING, changes))
    assert found <= kinds and found != {"right"}


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        pytest.param([("        async_copy.wait_group(1)\n", "")], {Race}, id="no wait for copies"),
        pytest.param([("wait_group(1)", "wait_group(2)")], {Race}, id="a wait for too few of them"),
        pytest.param([("        fence_async_shared()\n", "")], {Race}, id="no fence"),
        pytest.param([("    async_copy.wait_group(0)\n", ""), ("if block < blocks", "if block <= blocks")], {Race},
                     id="copies that are left behind"),
        pytest.param([("        sums = warpgroup_mma_wait(0, deps=[more])\n", "        sums = more\n")], {Race},
                     id="no wait for a product, whose operands are overwritten"),
        pytest.param([("live = (line < rows) & (k < K)", "live = k < K")], {OutOfBounds}, id="no mask of rows"),
        pytest.param([("mask=k < K)", "mask=k < K - 1)")], {"wrong"}, id="a mask that is too short"),
        pytest.param([("    gdc_wait()\n", "")], {Race}, id="no wait for the kernel before"),
    ],
)  # fmt: skip
def test_broken_groups_are_told(changes, kinds):
    assert set(verdict(GROUPS, changes, n=64, k=420)) <= kinds


def test_a_product_that_is_under_way_has_no_value():
    more = [("    async_copy.wait_group(0)\n", "    sums = more * 1.0\n"),
            ("        sums = warpgroup_mma_wait(0, deps=[more])\n", "")]  # fmt: skip
    with pytest.raises(TypeError, match="Product"):
        run(broken(GROUPS, *more), *operands(n=64, k=64))


def test_one_store_of_several_values_to_one_address_is_told():
    out = torch.zeros(4)

    def stored(data):
        pointer = Pointer.of(out) + Value(torch.tensor([1, 1]))
        with emulator.stream() as stream:
            stream.launch("kernel", lambda: pointer.store(Value(torch.tensor(data))), (1, 1, 1), False)

    stored([2.0, 2.0])
    assert out.tolist() == [0, 2, 0, 0]
    with pytest.raises(Race):
        stored([2.0, 3.0])


def test_shared_memory_lies_in_columns_of_the_swizzle():
    layout = hopper.NVMMASharedLayout.get_default_for([8, 128], torch.bfloat16)
    assert layout.width == 128
    places = layout.places([2, 8, 128], torch.bfloat16)
    # Sixty-four columns of eight rows, then the other ones, then the next block.
    assert [int(places[at]) for at in ((0, 0, 63), (0, 1, 0), (0, 0, 64), (1, 0, 0))] == [63, 64, 512, 1024]
    assert places.unique().numel() == 2048


def test_what_the_host_allocates_starts_poisoned():
    own = torch.empty
    with emulator.stream():
        assert torch.empty((3, 2), dtype=torch.bfloat16).isnan().all()
        assert torch.empty(4, dtype=torch.float8_e4m3fn).float().isnan().all()
        assert (torch.empty_like(torch.zeros(3, dtype=torch.int32)) == 0x5A5A5A5A).all()
    assert torch.empty is own


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda: value(-7) // 2, -3),
        (lambda: value(-7) % 2, -1),
        (lambda: value(7) / 2, 3.5),
        (lambda: (value(1) << 31) >> 31, -1),
        (lambda: emulator.where(True, value(3), 4.5), 3.0),
        (lambda: value(1000.0).to(torch.float8_e4m3fn).to(torch.float32), 448.0),
        (lambda: emulator.larger(float("nan"), 2.0), 2.0),
    ],
)
def test_scalars_are_those_of_triton(compute, expected):
    found = compute().data
    assert found == expected and found.dtype == (torch.int32 if isinstance(expected, int) else torch.float32)


def test_types_and_ranks_that_triton_would_refuse_are_refused():
    block = Value(torch.ones(2, 2))
    for wrong in (lambda: block + Value(torch.ones(2)), lambda: bool(block), lambda: block[0], lambda: block // 2,
                  lambda: emulator.arange(0, 3), lambda: emulator.floats(torch.exp)(block.to(torch.bfloat16)),
                  lambda: block.to(torch.float8_e5m2) * 2):  # fmt: skip
        with pytest.raises(TypeError):
            wrong()


def test_ptx_is_executed_on_bits():
    x, w = torch.tensor([1.5, -2.25]).bfloat16(), torch.tensor([3.0, float("nan")]).bfloat16()
    text = "{ .reg .b32 t; lop3.b32 t, $2, $3, $4, 0xF8; shl.b32 $0, t, 16; and.b32 $1, t, 0xFFFF0000; }"
    (got,) = asm.run(text, [x, w, torch.zeros(2, dtype=torch.int16)], [torch.float32], 2)
    assert got.tolist() == [1.5, -2.25]
    (got,) = asm.run("cvt.rn.bf16x2.f32 $0, $2, $1;", [torch.tensor([1.001, -3.0])], [torch.bfloat16], 2)
    assert got.tolist() == [1.0, -3.0]
    (got,) = asm.run("ex2.approx.ftz.f32 $0, $1;", [torch.tensor([-140.0, 3.0])], [torch.float32], 1)
    assert got.tolist() == [0.0, 8.0]
    cos, sin = asm.run(
        "cos.approx.ftz.f32 $0, $2; sin.approx.ftz.f32 $1, $2;", [torch.zeros(1)], [torch.float32] * 2, 1
    )
    assert (cos.item(), sin.item()) == (1.0, 0.0)
    with pytest.raises(NotImplementedError, match="add.f32"):
        asm.run("add.f32 $0, $1, $1;", [torch.zeros(1)], [torch.float32], 1)


def test_values_are_those_of_triton_s_own_interpreter(tmp_path):
    pytest.importorskip("triton", reason="pip install 'atrex[triton]'")
    file = tmp_path / "arithmetic.py"
    file.write_text(f"import interpreter_repair\n{ARITHMETIC}\ntorch.save(run(), {str(tmp_path / 'found')!r})\n")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, timeout=250,
                          env={"TRITON_INTERPRET": "1", "PATH": "", "PYTHONPATH": str(REPAIR)})  # fmt: skip
    assert done.returncode == 0, done.stderr
    with emulator.stream():
        ints, floats = emulator.execute(ARITHMETIC, "arithmetic").run()
    own_ints, own_floats = torch.load(tmp_path / "found")
    assert ints.tolist() == own_ints.tolist()
    torch.testing.assert_close(floats, own_floats, rtol=1e-6, atol=1e-6)
