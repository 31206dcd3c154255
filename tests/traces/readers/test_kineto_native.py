"""The native scanner against the decoder in Python: the same columns, or the piece is left to Python."""

import random

import numpy as np
import pytest

from atrex.traces.readers import kineto, kineto_native
from atrex.traces.readers.kineto_decode import PieceDecoder
from tests.traces import big, scene

pytestmark = pytest.mark.skipif(kineto_native.library() is None, reason="no C++ compiler here")
TEXT = {"name", "thread", "kernel", "grid", "block", "dims", "dtypes", "concrete"}


def piece(events, dialect="kineto"):
    """The inside of the event array, in brackets."""
    data = scene.render(events, dialect)
    start = data.index(b"[", data.index(b"traceEvents") if b"traceEvents" in data else 0)
    return bytearray(data[start : data.rindex(b"]") + 1])


def spelled(batch, strings):
    """A batch with its ids spelled out."""
    table = np.array([*strings, None], dtype=object)
    return {
        kind: {c: (table[v] if c in TEXT else v).tolist() for c, v in columns.items()}
        for kind, columns in batch.columns.items()
    }


def both(array):
    """(what the scanner makes of a piece or None, what Python makes of it), spelled out, with the counts."""
    native, python = kineto_native.NativeDecoder(kineto_native.library()), PieceDecoder()
    expected = python.decode(bytearray(array))
    table, found = native.decode(bytearray(array))
    native.close()
    if table == 1:
        return None, (spelled(expected, expected.strings), expected.counts)
    return (spelled(found, found.strings), found.counts), (spelled(expected, expected.strings), expected.counts)


def rich():
    """Events of every kind, with what makes values interesting."""
    built = scene.serving()
    built.call(["aten::copy_"], "Memcpy DtoD", 1_000, cat="gpu_memcpy", api="cudaMemcpyAsync", bytes=64)
    built.call(["aten::zero_"], "Memset", 500, cat="gpu_memset", bytes=4, **{"graph node id": 5, "graph id": 2})
    built.add("gpu_user_annotation", "step[DECODE bs=16]", built.device, 900, 0, 7)
    built.add("python_function", "<built-in method to of Tensor object at 0x7f37e4389270>", built.host, 10)
    built.add("python_function", 'quoted "name" and \\ backslash', built.host, 10)
    built.add("python_function", "naïve.py(3): прямо", built.host, 10)
    built.add(
        "cpu_op", "aten::x", built.host, 10, **{"Input Dims": [], "Input type": [], "Concrete Inputs": ["a, b", ""]}
    )
    built.add("overhead", "Activity Buffer Request", built.host, 10, -1, 0)
    built.add("kernel", "no args", built.device, 10, 3, 9)
    built.events[-1]["args"] = {}
    built.events.append({"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": "x", "ts": 0, "dur": 0})
    built.events.append({"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
                         "ts": 1, "dur": 0, "args": {"Bytes": -5, "x": [1.5e3, True, None, {"y": []}]}})  # fmt: skip
    return built.events


@pytest.mark.parametrize("dialect", ["kineto", "compact", "pretty", "bare", "absolute", "integer"])
def test_columns_are_those_of_python(dialect):
    found, expected = both(piece(rich(), dialect))
    assert found is not None
    assert found == expected


def test_strings_of_several_pieces_share_one_table():
    decoder = kineto_native.NativeDecoder(kineto_native.library())
    first, second = (decoder.decode(piece(rich())) for _ in range(2))
    decoder.close()
    assert first[0] == second[0] == 0 and second[1].strings == []
    assert (first[1].columns["kernel"]["name"] == second[1].columns["kernel"]["name"]).all()


@pytest.mark.parametrize(
    "digits", ["0", "1.5", "2.0005", "2.0015", "2.00051", "7.9999", "-3.25", "123456789012345.678"]
)
def test_times_are_exact_to_the_nanosecond_and_round_as_python_does(digits):
    text = f'[{{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": {digits}, "dur": {digits}}}]'
    _, batch = kineto_native.NativeDecoder(kineto_native.library()).decode(bytearray(text.encode()))
    from decimal import Decimal

    assert batch.columns["kernel"]["start"].tolist() == [int((Decimal(digits) * 1000).to_integral_value())]


@pytest.mark.parametrize(
    "event",
    [
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": "0", "tid": "stream 7", "ts": 1, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": "1", "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1e3, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "\\ud800", "pid": 0, "tid": 7, "ts": 1, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": NaN}',
        '{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 01, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {"correlation": 99999999999999999999}}',
        '{"ph": "B", "cat": "py-spy", "name": "f", "pid": 0, "tid": 7, "ts": 1}',
        '{"ph": "M", "name": "process_name", "pid": 0, "tid": 7, "args": {"name": "vllm"}}',
        '{"cat": "kernel", "name": "k"}',
        "{}",
        '{"ph": "X"} {"ph": "X"}',
        '{"ph": "X"},',
        '{"ph": "X", "a": ' + "[" * 100 + "]" * 100 + "}",
        '{"ph": "X", "cat": "kernel", "name": "k\x01"}',
        '{"ph": "X", "cat": "kernel", "name": "k',
    ],
)
def test_what_is_not_plain_is_left_to_python(event):
    decoder = kineto_native.NativeDecoder(kineto_native.library())
    assert decoder.decode(bytearray(f"[{event}]".encode("utf-8", "surrogatepass")))[0] == 1
    decoder.close()


def test_text_that_is_no_utf8_is_left_to_python():
    decoder = kineto_native.NativeDecoder(kineto_native.library())
    text = b'[{"ph": "X", "cat": "kernel", "name": "caf\xe9", "pid": 0, "tid": 7, "ts": 1, "dur": 1}]'
    assert decoder.decode(bytearray(text))[0] == 1
    decoder.close()


@pytest.mark.parametrize("seed", range(4))
def test_damaged_text_never_gives_other_columns(seed):
    """Bytes changed, dropped and doubled at random: the scanner leaves the piece to Python or agrees with it."""
    rng = random.Random(seed)
    base = bytes(piece(rich()[:14], "compact"))
    accepted = 0
    for _ in range(400):
        text = bytearray(base)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(1, len(text) - 1)
            change = rng.random()
            if change < 0.5:
                text[at] = rng.choice(b'0123456789"\\{}[],:.eE- ntx\x00\xff')
            elif change < 0.75:
                del text[at : at + rng.randint(1, 9)]
            else:
                text[at:at] = text[at : at + rng.randint(1, 30)]
        found, expected = both(text)
        if found is not None:
            accepted += 1
            assert found[0] == expected[0]
    assert accepted > 10  # changed digits and letters are fine


def test_a_large_file_read_with_it_is_the_same_as_without(tmp_path, monkeypatch):
    path = tmp_path / "big.json"
    big.write(path, 20_000, layers=4)
    path.write_bytes(path.read_bytes().replace(b"nn.Module: Attention_3", b'f"{x}"', 1))  # one piece for Python
    monkeypatch.setattr("atrex.traces.readers.kineto_stream.PARALLEL_FROM", 0)
    monkeypatch.setattr("atrex.traces.readers.kineto_pieces.PIECE", 1 << 18)
    native = kineto.read(path, jobs=2)
    monkeypatch.setattr(kineto_native, "library", lambda: None)
    python = kineto.read(path, jobs=1)

    def rows(trace):
        table = np.array([*trace.strings.values, None], dtype=object)
        return {
            name: sorted(
                tuple(table[v] if c in TEXT else v for c, v in row.items()) for row in frame.iter_rows(named=True)
            )
            for name, frame in (("device", trace.device), ("launches", trace.launches))
        } | {"host": sorted((table[n], s, d) for n, s, d in trace.host.select("name", "start", "dur").iter_rows())}

    assert rows(native) == rows(python)
    assert native.meta.counts == python.meta.counts and native.meta.loss == python.meta.loss


def test_it_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(kineto_native.OFF, "1")
    kineto_native.library.cache_clear()
    assert kineto_native.library() is None
    monkeypatch.delenv(kineto_native.OFF)
    kineto_native.library.cache_clear()
    assert kineto_native.library() is not None
