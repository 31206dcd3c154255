"""Translation of rocprofiler-sdk records from hand-packed bytes; the library itself needs an AMD device."""

import ctypes
import struct

import pytest

from atrex.profiling import rocprofiler
from atrex.profiling.collector import CollectorUnavailable

NAME = ctypes.create_string_buffer(b"_Z4axpyPfS_f.kd")


def packed(size: int, fields: dict[int, int]) -> ctypes.Array:
    memory = ctypes.create_string_buffer(b"\xa5" * size, size)
    for offset, value in fields.items():
        struct.pack_into("<i" if offset == 12 else "<Q", memory, offset, value)
    return memory


def deliver(profiler: rocprofiler.RocProfiler, *records: tuple[int, ctypes.Array], dropped: int = 0) -> None:
    headers = [rocprofiler._Header(1, kind, ctypes.addressof(memory)) for kind, memory in records]
    pointers = (ctypes.POINTER(rocprofiler._Header) * len(headers))(*map(ctypes.pointer, headers))
    profiler._on_buffer(0, 0, ctypes.cast(pointers, ctypes.POINTER(ctypes.POINTER(rocprofiler._Header))), len(headers),
                        None, dropped)


class FakeLibrary:
    """Accepts every call; the flush delivers what the test prepared."""

    def __init__(self, on_flush=lambda: None, version: int = 10_000):
        self.on_flush, self.version = on_flush, version

    def rocprofiler_force_configure(self, configure):
        if configure(self.version, b"", 0, None):
            self.result = rocprofiler._ConfigureResult.from_address(configure(self.version, b"", 0, None))
            self.result.initialize(None, None)
        return 0

    def rocprofiler_create_context(self, context):
        context._obj.value = 1
        return 0

    def rocprofiler_flush_buffer(self, buffer):
        self.on_flush()
        return 0

    def __getattr__(self, name):
        if not name.startswith("rocprofiler_"):
            raise AttributeError(name)
        return lambda *arguments: 0


def test_dispatches_carry_the_name_registered_with_their_code_object(monkeypatch):
    profiler = rocprofiler.RocProfiler()
    symbol = packed(96, {8: 42, 24: ctypes.addressof(NAME)})
    dispatch = packed(184, {16: 5, 40: 1_000, 48: 3_500, 64: 2, 72: 9, 80: 42})
    copy = packed(112, {12: 4, 16: 6, 40: 500, 48: 900, 56: 2})
    library = FakeLibrary(lambda: deliver(profiler, (11, dispatch), (10, copy), dropped=1))
    monkeypatch.setattr(rocprofiler, "load_library", lambda: library)
    profiler.enable()
    profiler._on_symbol(
        rocprofiler._CallbackRecord(kind=10, operation=2, phase=1, payload=ctypes.addressof(symbol)), None, None
    )
    profiler.start()
    first, second = profiler.stop()
    assert (first.name, first.kind, first.us, first.correlation) == ("Memcpy DtoD", "memcpy", 0.4, 6)
    assert (second.name, second.kind, second.us) == ("_Z4axpyPfS_f", "kernel", 2.5)
    assert (second.stream, second.correlation, second.device) == (9, 5, 2)
    assert profiler.dropped == 1


def test_versions_with_another_record_layout_are_refused(monkeypatch):
    monkeypatch.setattr(rocprofiler, "load_library", lambda: FakeLibrary(version=600))
    with pytest.raises(CollectorUnavailable, match="0.6 is too old"):
        rocprofiler.RocProfiler().enable()


def test_missing_library_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(rocprofiler, "library_candidates", lambda: iter([]))
    with pytest.raises(CollectorUnavailable, match="librocprofiler-sdk cannot be loaded"):
        rocprofiler.load_library()
