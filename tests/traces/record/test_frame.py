"""Signal frames made by hand."""

import struct

import pytest

from atrex.traces.record import frame
from atrex.traces.record.ptrace import Registers

AVX512, TILES, PROTECTION_KEYS = 0xE7, 0x60000, 0x200


def stopped(result, number=202, at=0x1000):
    return Registers(rax=result % (1 << 64), orig_rax=number % (1 << 64), rip=at, cs=0x33)


@pytest.mark.parametrize("error", [-512, -513, -514, -516])
def test_an_interrupted_system_call_is_made_again(error):
    found = frame.resumable(stopped(error))
    assert (found.rax, found.rip) == (202, 0x1000 - 2)


@pytest.mark.parametrize("result", [0, 17, -4, -11])
def test_a_finished_system_call_is_not_made_again(result):
    found = frame.resumable(stopped(result))
    assert (found.result, found.rip) == (result, 0x1000)


def test_user_code_goes_on_where_it_was():
    found = frame.resumable(stopped(-512, number=-1))
    assert (found.result, found.rip) == (-512, 0x1000)


def state(features, used, size):
    content = bytearray(size)
    struct.pack_into("<Q", content, 464, features)
    struct.pack_into("<Q", content, 512, used)
    return bytes(content)


def sizes(content):
    magic, extended, features, size = struct.unpack_from("<IIQI", content, 464)
    assert magic == 0x46505853 and extended == size + 4 == len(content)
    assert content[size:] == struct.pack("<I", 0x46505845)
    return features, size


def test_all_of_the_vector_state_is_in_the_frame():
    assert sizes(frame.xstate_for_frame(state(AVX512 | PROTECTION_KEYS, 7, 2696))) == (AVX512 | PROTECTION_KEYS, 2696)


def test_a_thread_without_tiles_has_a_frame_that_its_kernel_takes_on_a_cpu_with_tiles():
    features, size = sizes(frame.xstate_for_frame(state(AVX512 | PROTECTION_KEYS | TILES, 7, 11008)))
    assert not features & TILES and size == 2696


def test_tiles_in_use_are_kept():
    features, size = sizes(frame.xstate_for_frame(state(AVX512 | TILES, 7 | TILES, 11008)))
    assert features & TILES and size == 11008


def test_a_frame_lies_under_the_red_zone_as_a_function_expects_its_stack():
    xstate = frame.xstate_for_frame(state(7, 7, 832))
    for stack in range(0x7FFF0000, 0x7FFF0040):
        at = frame.address_below(stack, xstate)
        content = frame.build(at, 0x1234, stopped(0), xstate, 0)
        assert at % 16 == 8
        assert at + len(content) <= stack - frame.RED_ZONE


def test_the_frame_s_vector_state_is_aligned():
    xstate = frame.xstate_for_frame(state(7, 7, 832))
    for at in range(0x1008, 0x1088, 16):
        content = frame.build(at, 0x1234, stopped(0), xstate, 0)
        pointer = struct.unpack_from("<Q", content, 48 + 184)[0]
        assert pointer % 64 == 0 and content[pointer - at :] == xstate
