"""Symbols of a 64-bit ELF file, as the parts of the recorder that look into another process need them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LOAD, _X86_64 = 1, 62
_SYMTAB, _DYNSYM = 2, 11


@dataclass(frozen=True)
class Segment:
    """A loadable part of the file, in bytes."""

    offset: int
    address: int
    size: int


@dataclass(frozen=True)
class Symbol:
    """An address in the file's own numbering, and a size in bytes (0 where the file does not say)."""

    address: int
    size: int


class Elf:
    """An ELF file that is read only where it is asked. Raises ValueError for what is none of x86-64."""

    def __init__(self, path: Path | str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        try:
            self._read_headers()
        except struct.error:
            self.close()
            raise ValueError("ends within its headers") from None
        except ValueError:
            self.close()
            raise

    def _read_headers(self) -> None:
        head = self._file.read(64)
        if head[:4] != b"\x7fELF" or len(head) < 64 or head[4] != 2 or struct.unpack_from("<H", head, 18)[0] != _X86_64:
            raise ValueError("not an ELF file of x86-64")
        at_segments, at_sections = struct.unpack_from("<QQ", head, 32)
        segment_size, segments, section_size, sections = struct.unpack_from("<HHHH", head, 54)
        self.segments = []
        for row in self._rows(at_segments, segment_size, segments):
            kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", row)
            if kind == _LOAD:
                self.segments.append(Segment(offset, address, size))
        self._sections = []
        for row in self._rows(at_sections, section_size, sections):
            _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", row)
            self._sections.append((kind, offset, size, link))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        return self._file.read(size)

    def _rows(self, offset: int, size: int, count: int) -> list[bytes]:
        table = self.read(offset, size * count) if size else b""
        return [table[i * size : (i + 1) * size] for i in range(count)]

    def offset_of(self, address: int) -> int:
        """Where in the file the content of an address stands. Raises ValueError where it does not."""
        for segment in self.segments:
            if segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise ValueError(f"address {address:#x} is in no segment")

    def symbols(self, names: Iterable[str]) -> dict[str, list[Symbol]]:
        """The defined symbols of these names, from both tables.

        What the compiler made of a function (`name.part.0`, `name.cold`) counts as the function.
        """
        wanted = list(names)
        found: dict[str, set[Symbol]] = {name: set() for name in wanted}
        pattern = re.compile(b"(" + b"|".join(re.escape(n.encode()) for n in wanted) + rb")(?:\.[a-z_]+(?:\.\d+)*)*\0")
        for kind, offset, size, link in self._sections:
            if kind not in (_SYMTAB, _DYNSYM):
                continue
            strings = self.read(*self._sections[link][1:3])
            at = {match.start(): match[1].decode() for match in pattern.finditer(strings)}
            # A name can be the tail of another one (the linker shares them), which finditer passes over.
            for name in wanted:
                text, start = name.encode() + b"\0", -1
                while (start := strings.find(text, start + 1)) >= 0:
                    at[start] = name
            table = self.read(offset, size)
            for name, _, _, section, address, length in struct.iter_unpack("<IBBHQQ", table[: len(table) // 24 * 24]):
                if name in at and section and address:
                    found[at[name]].add(Symbol(address, length))
        return {name: sorted(symbols, key=lambda s: s.address) for name, symbols in found.items() if symbols}
