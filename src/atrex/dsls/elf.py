"""Names of functions in an ELF file: kernels of a cubin or an AMD code object, host functions of a shared library."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLES = (2, 11)  # SHT_SYMTAB, SHT_DYNSYM
_FUNC = 2
_MAGIC = b"\x7fELF\x02\x01"
_EM_CUDA = 190


def functions(data: bytes) -> set[str]:
    """Functions that a 64-bit little-endian ELF file defines, as its symbol tables name them.

    Empty for anything else, and for a file without symbols.
    """
    try:
        return _functions(data)
    except (struct.error, IndexError, ValueError):
        return set()


def cubins(data: bytes) -> list[bytes]:
    """The cubins inside a fat binary, or inside a file that holds some; each runs on to the end of `data`.

    Compressed ones are not found; nvcc and CuTe DSL leave theirs as they are unless told otherwise.
    """
    found = []
    at = data.find(_MAGIC)
    while at >= 0:
        machine = data[at + 18 : at + 20]
        if machine == _EM_CUDA.to_bytes(2, "little"):
            found.append(data[at:])
        at = data.find(_MAGIC, at + 1)
    return found


def _functions(data: bytes) -> set[str]:
    if data[:6] != _MAGIC:
        raise ValueError("not a 64-bit little-endian ELF file")
    head = _HEADER.unpack_from(data, 0)
    start, size, count = head[6], head[11], head[12]
    sections = [_SECTION.unpack_from(data, start + i * size) for i in range(count)]
    found = set()
    for section in sections:
        if section[1] not in _SYMBOL_TABLES:
            continue
        offset, size, strings = section[4], section[5], sections[section[6]][4]
        for at in range(offset, offset + size, _SYMBOL.size):
            name, info, _, index, _, _ = _SYMBOL.unpack_from(data, at)
            if info & 0xF == _FUNC and index != 0:
                found.add(_text(data, strings + name))
    return found


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode(errors="replace")
