"""CUPTI records from hand-packed bytes, and the library itself where one is installed (no device needed)."""

import ctypes
import struct

import pytest

from atrex.profiling import cupti
from atrex.profiling.collector import CollectorError, CollectorUnavailable
from atrex.profiling.cupti_records import ActivityKind, parse

NAME = ctypes.create_string_buffer(b"_Z4axpyPfS_f")
# Record sizes and field offsets as printed by offsetof over the CUPTI 13.0 headers.
KERNEL = (216, {"kind": (0, "I"), "start": (16, "Q"), "end": (24, "Q"), "device": (40, "I"), "context": (44, "I"),
                "stream": (48, "I"), "grid_x": (52, "i"), "correlation": (92, "I"), "name": (104, "Q")})
MEMCPY = (96, {"kind": (0, "I"), "copy": (4, "B"), "bytes": (8, "Q"), "start": (16, "Q"), "end": (24, "Q"),
               "device": (32, "I"), "context": (36, "I"), "stream": (40, "I"), "correlation": (44, "I")})
MEMSET = (88, {"kind": (0, "I"), "value": (4, "I"), "bytes": (8, "Q"), "start": (16, "Q"), "end": (24, "Q"),
               "device": (32, "I"), "context": (36, "I"), "stream": (40, "I"), "correlation": (44, "I")})
PEER = (96, {"kind": (0, "I"), "copy": (4, "B"), "bytes": (8, "Q"), "start": (16, "Q"), "end": (24, "Q"),
             "device": (32, "I"), "context": (36, "I"), "stream": (40, "I"), "correlation": (60, "I")})


def pack(layout, **fields) -> bytes:
    size, offsets = layout
    record = bytearray(b"\xa5" * size)  # what is not set must not matter
    for field, value in fields.items():
        offset, code = offsets[field]
        struct.pack_into("<" + code, record, offset, value)
    return bytes(record)


def kernel(start=1_000, end=4_500, correlation=7) -> bytes:
    return pack(KERNEL, kind=10, start=start, end=end, device=1, context=2, stream=13, grid_x=5,
                correlation=correlation, name=ctypes.addressof(NAME))


@pytest.fixture
def place():
    """Copies bytes to aligned memory that lives as long as the test."""
    kept = []

    def at(data: bytes) -> int:
        kept.append((ctypes.c_uint64 * (len(data) // 8 + 1))())
        ctypes.memmove(kept[-1], data, len(data))
        return ctypes.addressof(kept[-1])

    return at


def test_kernel_record(place):
    record = parse(place(kernel()))
    assert (record.name, record.kind) == ("_Z4axpyPfS_f", "kernel")
    assert (record.start_ns, record.end_ns, record.us) == (1_000, 4_500, 3.5)
    assert (record.stream, record.correlation, record.device) == (13, 7, 1)


@pytest.mark.parametrize("layout, kind", [(MEMCPY, 1), (PEER, 22)])
def test_copy_records(place, layout, kind):
    data = pack(layout, kind=kind, copy=8, bytes=64, start=10, end=30, device=2, context=1, stream=4, correlation=99)
    record = parse(place(data))
    assert (record.name, record.kind) == ("Memcpy DtoD", "memcpy")
    assert (record.start_ns, record.end_ns) == (10, 30)
    assert (record.stream, record.correlation, record.device) == (4, 99, 2)


def test_memset_record(place):
    data = pack(MEMSET, kind=2, value=0, bytes=64, start=10, end=30, device=0, context=1, stream=4, correlation=5)
    record = parse(place(data))
    assert (record.name, record.kind) == ("Memset", "memset")
    assert (record.start_ns, record.end_ns, record.stream, record.correlation) == (10, 30, 4, 5)


def test_other_kinds_are_skipped(place):
    assert parse(place(pack(MEMSET, kind=51))) is None


class FakeLibrary:
    """A libcupti whose device ran what `buffer` holds: delivers it, as CUPTI does, on the forced flush."""

    def __init__(self, records: list[bytes], dropped: int = 0, results: dict[str, int] | None = None):
        self.records, self.dropped, self.results = records, dropped, results or {}
        self.enabled: set[int] = set()
        self.addresses: list[int] = []

    def cuptiGetVersion(self, version):
        version._obj.value = 130001
        return 0

    def cuptiGetResultString(self, code, text):
        text._obj.value = b"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
        return 0

    def cuptiActivityRegisterCallbacks(self, requested, completed):
        self.requested, self.completed = requested, completed
        return 0

    def cuptiActivityEnable(self, kind):
        self.enabled.add(kind)
        return self.results.get("enable", 0)

    def cuptiActivityDisable(self, kind):
        self.enabled.discard(kind)
        return 0

    def cuptiActivityFlushAll(self, flag):
        address, size, count = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
        self.requested(address, size, count)
        position = address.value
        for record in self.records:
            ctypes.memmove(position, record, len(record))
            self.addresses.append(position)
            position += len(record)
        self.completed(None, 0, address, size, position - address.value)
        return 0

    def cuptiActivityGetNextRecord(self, buffer, valid, record):
        if not self.addresses:
            return 12
        record._obj.value = self.addresses.pop(0)
        return 0

    def cuptiActivityGetNumDroppedRecords(self, context, stream, dropped):
        dropped._obj.value, self.dropped = self.dropped, 0
        return 0


def collector(monkeypatch, library: FakeLibrary) -> cupti.Cupti:
    monkeypatch.setattr(cupti, "load_library", lambda: library)
    monkeypatch.setattr(cupti.atexit, "register", lambda function: None)
    collector = cupti.Cupti(buffer_bytes=1 << 16)
    collector.enable()
    return collector


def test_nothing_is_collected_outside_start_and_stop(monkeypatch):
    library = FakeLibrary([kernel()])
    c = collector(monkeypatch, library)
    assert not library.enabled
    c.start()
    assert library.enabled == set(ActivityKind)
    c.stop()
    assert not library.enabled


def test_records_come_in_order_of_start(monkeypatch):
    c = collector(monkeypatch, FakeLibrary([kernel(start=50, end=60), kernel(start=20, end=40)]))
    c.start()
    assert [record.start_ns for record in c.stop()] == [20, 50]
    c.start()
    assert len(c.stop()) == 2  # the second period holds its own records only


def test_records_without_time_are_counted_not_returned(monkeypatch):
    c = collector(monkeypatch, FakeLibrary([kernel(), kernel(end=0), kernel(start=0)]))
    c.start()
    assert len(c.stop()) == 1
    assert c.untimed == 2


def test_dropped_records_are_reported(monkeypatch):
    library = FakeLibrary([kernel()])
    c = collector(monkeypatch, library)
    c.start()
    library.dropped = 3
    c.stop()
    assert c.dropped == 3


def test_cupti_errors_carry_call_code_and_name(monkeypatch):
    with pytest.raises(cupti.CuptiError, match="cuptiActivityEnable failed: CUPTI_ERROR_MULTIPLE.* \\(39\\)") as error:
        collector(monkeypatch, FakeLibrary([], results={"enable": 39}))
    assert error.value.code == 39


def test_stop_without_start(monkeypatch):
    with pytest.raises(CollectorError, match="without start"):
        collector(monkeypatch, FakeLibrary([])).stop()


def test_missing_library_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(cupti, "library_candidates", lambda: iter(["/nowhere/libcupti.so.13"]))
    with pytest.raises(CollectorUnavailable, match="libcupti cannot be loaded: .*nowhere"):
        cupti.load_library()


@pytest.fixture(scope="module")
def library():
    try:
        return cupti.load_library()
    except CollectorUnavailable as missing:
        pytest.skip(str(missing))


def test_real_library_iterates_a_packed_buffer(library, place):
    """CUPTI's own iterator must step over our records: their sizes are the library's, not ours."""
    version = ctypes.c_uint32()
    assert library.cuptiGetVersion(ctypes.byref(version)) == 0
    size = {24: 208, 26: 208, 130001: 216}.get(version.value)  # sizeof the kernel record in its headers
    if size is None:
        pytest.skip(f"the record size of CUPTI API version {version.value} is not known here")
    data = kernel(correlation=1)[:size] + pack(MEMSET, kind=2, start=1, end=2, correlation=2)
    record, seen = ctypes.c_void_p(), []
    buffer = place(data)
    while library.cuptiActivityGetNextRecord(buffer, len(data), ctypes.byref(record)) == 0:
        seen.append(parse(record.value).correlation)
    assert seen == [1, 2]
