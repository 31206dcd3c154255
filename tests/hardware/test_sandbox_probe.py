"""Asking what confinement is possible changes nothing in the process that asks."""

import os
import sys

import pytest

from atrex.hardware import sandbox

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")


def test_probing_leaves_this_process_where_it_is():
    before = os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/net")
    sandbox.can_unshare(sandbox.CLONE_NEWUSER | sandbox.CLONE_NEWNET)
    sandbox.can_set_no_new_privs()
    assert (os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/net")) == before


def test_a_refused_namespace_is_named_by_its_reason():
    assert sandbox.can_unshare(0x1) is not None  # CLONE_* has no such flag


def test_landlock_version_is_a_small_number_or_absent():
    abi = sandbox.landlock_abi()
    assert abi is None or 1 <= abi < 100
