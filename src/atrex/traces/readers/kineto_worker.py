"""A process that decodes pieces of a Kineto file: pickled pieces on stdin, pickled batches on stdout."""

from __future__ import annotations

import pickle
import sys
from typing import Any


def load_piece(piece: bytes | tuple[str, int, int]) -> bytearray:
    """A piece's bytes in brackets, as one JSON array; a piece of a plain file is (path, start, stop)."""
    if isinstance(piece, bytes):
        text = bytearray(len(piece) + 2)
        text[1:-1] = piece
    else:
        path, start, stop = piece
        text = bytearray(stop - start + 2)
        with open(path, "rb") as file:
            file.seek(start)
            read = file.readinto(memoryview(text)[1:-1])
        del text[read + 1 : -1]  # the file has shrunk since
    text[0], text[-1] = b"[]"
    return text


def main() -> None:
    from atrex.traces.readers.kineto_decode import PieceDecoder

    decoder, source, sink = PieceDecoder(), sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            piece: Any = pickle.load(source)
        except EOFError:
            return
        pickle.dump(decoder.decode(load_piece(piece)), sink, protocol=5)
        sink.flush()


if __name__ == "__main__":
    main()
