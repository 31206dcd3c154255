"""Symbols of ELF files."""

import ctypes
import platform
import shutil
import subprocess
import sys

import pytest

from atrex.errors import UserError
from atrex.traces.record import inject, target
from atrex.traces.record.elf import Elf
from tests.traces.record.running import program, until

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="x86-64 only")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


def test_addresses_are_those_of_the_running_process():
    with program("nothing") as running:
        code = (
            "import ctypes; ack(); open('{}', 'w').write(str(ctypes.cast("
            "ctypes.pythonapi.Py_AddPendingCall, ctypes.c_void_p).value))"
        )
        found = running.folder / "address"
        inject.inject(running.where, code.format(found))
        until(lambda: found.exists() and found.read_text(), "the address")
        assert int(found.read_text()) == running.where.add
        assert running.where.version == sys.version_info[:2]
        running.finish()


@needs_compiler
def test_parts_that_the_compiler_split_off_count_as_the_function(tmp_path):
    source = """
        extern "C" {
        __attribute__((noinline)) void first() { asm(""); }
        void outlined() { asm(""); }
        void other_first() { asm(""); }
        }
        asm(".globl outlined.part.0\\n.type outlined.part.0, @function\\n"
            "outlined.part.0: ret\\n.size outlined.part.0, 1");
    """
    (tmp_path / "a.cpp").write_text(source)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", tmp_path / "a.so", tmp_path / "a.cpp"], check=True)
    with Elf(tmp_path / "a.so") as elf:
        found = elf.symbols(["first", "outlined", "absent"])
    assert found.keys() == {"first", "outlined"}
    assert len(found["outlined"]) == 2
    assert len(found["first"]) == 1  # and not that of other_first, whose name ends alike
    library = ctypes.CDLL(str(tmp_path / "a.so"))
    apart = found["outlined"][0].address, found["first"][0].address
    here = [ctypes.cast(getattr(library, n), ctypes.c_void_p).value for n in ("outlined", "first")]
    assert here[0] - here[1] in (apart[0] - apart[1], found["outlined"][1].address - apart[1])


def test_what_is_no_elf_file_is_said_to_be_none(tmp_path):
    (tmp_path / "a").write_bytes(b"\x7fELF" + b"\0" * 20)
    with pytest.raises(ValueError, match="not an ELF file"):
        Elf(tmp_path / "a")


def test_an_interpreter_that_was_replaced_on_disk_is_refused():
    """As after an upgrade of a package: the file under that name is not the one that runs."""
    read = Elf.read
    with program("nothing") as running, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Elf, "read", lambda self, at, size: b"\x90" * 32 if size == 32 else read(self, at, size))
        with pytest.raises(UserError, match="it was replaced since the process started"):
            target.inspect(running.pid)
