"""Operands on a device that is not here: integers with their values, floats without memory."""

import psutil
import pytest
import torch

from atrex.compile import device, pointers
from atrex.compile.inputs import operands
from atrex.compile.values import KnownValues
from atrex.dsls.offline import parse_target
from atrex.problems.load import load_suite

SUITE = load_suite()


@pytest.fixture(scope="module")
def values():
    found = KnownValues()
    target = parse_target("sm_90a")
    with device.standing_in(target), pointers.given(target, found), found.fake():
        yield found


@pytest.mark.parametrize("operator", list(SUITE.problems))
def test_integer_operands_of_every_operator_are_known_and_floats_are_not(values, operator):
    problem = SUITE.problem(operator)
    smallest = min(problem.shapes.values(), key=lambda shape: problem.work(shape).total_bytes)
    for name, tensor in operands(problem, smallest, values, "e4m3fn").items():
        assert tensor.is_cuda and str(tensor.device) == "cuda:0", name
        assert (values.value(tensor) is None) == tensor.is_floating_point(), name


def test_the_largest_shapes_take_no_memory_for_their_floats(values):
    problem = SUITE.problem("fused_moe")
    largest = max(problem.shapes.values(), key=lambda shape: problem.work(shape).total_bytes)
    before = psutil.Process().memory_info().rss
    made = operands(problem, largest, values, "e4m3fn")
    size = sum(t.nbytes for t in made.values())
    assert size > 1 << 30 and psutil.Process().memory_info().rss - before < size / 4
    assert values.value(made["topk_ids"]) is not None


def test_the_fp8_of_the_chip_is_what_operands_have(values):
    problem = SUITE.problem("block_scaled_mm")
    made = operands(problem, problem.shape("0"), values, "e4m3fnuz")
    assert made["a"].dtype == torch.float8_e4m3fnuz


def test_values_follow_views_and_end_where_an_address_was_taken(values):
    table = torch.zeros(8, dtype=torch.int32, device="cuda")
    view = table[2:5]
    table[3] = 7
    assert view.tolist() == [0, 7, 0]
    view.data_ptr()  # whoever has the address may write there
    assert values.value(view) is None and values.value(table) is None


def test_an_operand_that_does_not_change_stays_known(values):
    problem = SUITE.problem("paged_attention_decode")
    lengths = operands(problem, problem.shape("0"), values, "e4m3fn")["seq_lens"]
    lengths.data_ptr()
    assert int(lengths.max()) == max(lengths.tolist()) > 0


def test_uninitialized_and_random_memory_has_no_values(values):
    assert values.value(torch.empty(3, dtype=torch.int64, device="cuda")) is None
    assert values.value(torch.randint(9, (3,), device="cuda")) is None


def test_a_dlpack_capsule_describes_the_tensor(values):
    tensor = torch.empty(4, 6, dtype=torch.bfloat16, device="cuda")[:, 2:]
    assert tensor.__dlpack_device__() == (2, 0)
    assert "dltensor" in str(tensor.__dlpack__(stream=-1))
    first, second = torch.empty(4, device="cuda"), torch.empty(4, device="cuda")
    assert first.data_ptr() % 512 == 0 and first.data_ptr() != second.data_ptr()
    assert first[1:].data_ptr() == first.data_ptr() + 4
