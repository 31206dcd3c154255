"""Make a wheel of CUDA libraries small enough to be carried to a machine without a network.

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux_2_35_x86_64 vllm==0.20.2
    python benchmarks/carry_wheel.py vllm-0.20.2-cp38-abi3-manylinux_2_35_x86_64.whl --arch 90 --out vllm.tar.xz
    tar xJf vllm.tar.xz -C SITE         # on that machine, with SITE on PYTHONPATH

Python files, metadata and libraries are kept; in the libraries, the code for every other architecture, and PTX, is
overwritten with zeros, so that it compresses to nothing. What is loaded on a device of `--arch` is unchanged.
"""

from __future__ import annotations

import argparse
import io
import struct
import tarfile
import zipfile
from pathlib import Path

CONTAINER = b"\x50\xed\x55\xba"  # a fat binary: magic, version, header bytes, bytes of entries
MACHINE_CODE = 2


def pruned(library: bytes, arch: int) -> tuple[bytes, int]:
    """The library with all device code but the machine code for `arch` (such as 90) zeroed, and the bytes kept."""
    data, at, kept = bytearray(library), 0, 0
    while (at := data.find(CONTAINER, at)) >= 0:
        version, header, size = struct.unpack_from("<HHQ", data, at + 4)
        end = at + header + size
        if version != 1 or header != 16 or end > len(data):  # the same bytes elsewhere
            at += len(CONTAINER)
            continue
        entry = at + header
        while entry < end:
            kind, _, before, nbytes = struct.unpack_from("<HHIQ", data, entry)
            (made_for,) = struct.unpack_from("<I", data, entry + 28)
            if kind not in (1, MACHINE_CODE):
                break
            if kind == MACHINE_CODE and made_for == arch:
                kept += nbytes
            else:
                data[entry + before : entry + before + nbytes] = bytes(nbytes)
            entry += before + nbytes
        at = end
    return bytes(data), kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--arch", type=int, default=90)
    parser.add_argument("--leave-out", action="append", default=[], help="a path's beginning; may be given again")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as wheel, tarfile.open(options.out, "w:xz", preset=6) as out:
        for info in wheel.infolist():
            name = info.filename
            wanted = name.endswith((".py", ".so")) or ".dist-info/" in name
            if not wanted or name.startswith(tuple(options.leave_out)):
                continue
            data = wheel.read(info)
            if name.endswith(".so"):
                data, kept = pruned(data, options.arch)
                print(f"{name}: {len(data) >> 20} MiB, {kept >> 20} MiB of it for sm_{options.arch}")
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            out.addfile(entry, io.BytesIO(data))
    print(f"{options.out}: {options.out.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    main()
