"""A process that decodes pieces of a Kineto file: pickled pieces on stdin, pickled batches on stdout."""

from __future__ import annotations

import pickle
import sys
from typing import Any


def load_piece(piece: bytes | tuple[str, int, int]) -> bytes:
    """The bytes of a piece: themselves, or (path, start, stop) of a plain file."""
    if isinstance(piece, bytes):
        return piece
    path, start, stop = piece
    with open(path, "rb") as file:
        file.seek(start)
        return file.read(stop - start)


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
