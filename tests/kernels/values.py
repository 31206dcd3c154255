"""What a kernel computes with, over torch on the CPU: blocks and scalars, and pointers into tensors.

Types meet as they do in Triton: a Python number is weak, integers divide towards zero, halves divide in float32, ranks
must agree, a conversion to fp8 saturates. Every access is checked against the tensor that the pointer came from.
"""

from __future__ import annotations

import operator
from types import SimpleNamespace

import torch

from tests.kernels import machine

HALVES = (torch.float16, torch.bfloat16)
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def together(a: torch.dtype, b: torch.dtype, divides: bool = False) -> torch.dtype:
    """The type that operands of two types are brought to."""
    floats = [dtype for dtype in (a, b) if dtype.is_floating_point]
    if any(dtype in FP8 for dtype in floats):
        raise TypeError(f"no arithmetic on {a} and {b}")
    if not floats:
        return torch.promote_types(a, b)
    for dtype in (torch.float64, torch.float32):
        if dtype in floats:
            return dtype
    if divides:
        return torch.float32
    return torch.float16 if torch.float16 in floats else torch.bfloat16


def beside(dtype: torch.dtype, number: bool | int | float, divides: bool = False) -> torch.dtype:
    """The type that an operand and a Python number are brought to."""
    if isinstance(number, float):
        dtype = dtype if dtype.is_floating_point else torch.float32
    elif not isinstance(number, bool) and dtype == torch.bool:
        dtype = torch.int32
    return together(dtype, dtype, divides)


def converted(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype in FP8 and data.dtype != dtype:
        largest = torch.finfo(dtype).max
        return data.float().clamp(-largest, largest).to(dtype)
    return data.to(dtype)


def poisoned(shape, dtype: torch.dtype) -> torch.Tensor:
    """What nobody has written: NaN, or an integer that is no one's."""
    code = 0xFF if dtype.is_floating_point else 0x5A
    size = 1
    for n in shape:
        size *= n
    return torch.full((size * dtype.itemsize,), code, dtype=torch.uint8).view(dtype).view(tuple(shape))


class Value:
    """A block or a scalar."""

    __slots__ = ("data",)
    __hash__ = None

    def __init__(self, data: torch.Tensor):
        self.data = data

    dtype = property(lambda self: self.data.dtype)
    shape = property(lambda self: list(self.data.shape))
    type = property(lambda self: SimpleNamespace(layout=None, shape=self.shape, element_ty=self.dtype))
    T = property(lambda self: Value(self.data.transpose(0, 1)))

    def __repr__(self):
        return f"Value({self.data})"

    def __bool__(self):
        if self.data.numel() != 1:
            raise TypeError(f"a block of shape {self.shape} is neither true nor false")
        return bool(self.data)

    def __index__(self):
        if self.data.numel() != 1 or self.dtype not in INTEGERS:
            raise TypeError(f"a block of shape {self.shape} and type {self.dtype} is no index")
        return int(self.data)

    def __getitem__(self, key):
        key = key if isinstance(key, tuple) else (key,)
        if any(k is not None and k != slice(None) for k in key):
            raise TypeError(f"blocks take : and None between brackets, not {key}")
        return Value(self.data[key])

    def to(self, dtype, bitcast=False):
        if bitcast:
            if dtype.itemsize != self.dtype.itemsize:
                raise TypeError(f"{self.dtype} has not the bits of {dtype}")
            return Value(self.data.contiguous().view(dtype))
        return Value(converted(self.data, dtype))

    def reshape(self, *shape):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if self.data.numel() != torch.Size(shape).numel():
            raise TypeError(f"{self.shape} is no {shape}")
        return Value(self.data.reshape(tuple(shape)))

    def __neg__(self):
        return Value(-self.data)

    def __invert__(self):
        return Value(~self.data)


def value(x) -> Value:
    """x as an operand: a Python number becomes int32 (int64 where it must), float32 or a truth value."""
    if isinstance(x, Value):
        return x
    if isinstance(x, bool):
        return Value(torch.tensor(x))
    if isinstance(x, int):
        return Value(torch.tensor(x, dtype=torch.int32 if -(1 << 31) <= x < 1 << 31 else torch.int64))
    if isinstance(x, float):
        return Value(torch.tensor(x, dtype=torch.float32))
    raise TypeError(f"{type(x).__name__} is no operand")


def pair(a, b, divides: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Both operands in one type; their ranks agree, unless one of them is a scalar."""
    if isinstance(a, Value) and isinstance(b, Value):
        dtype = together(a.dtype, b.dtype, divides)
        if a.data.ndim and b.data.ndim and a.data.ndim != b.data.ndim:
            raise TypeError(f"shapes {a.shape} and {b.shape} have not the same rank")
        return a.data.to(dtype), b.data.to(dtype)
    if isinstance(a, Value):
        dtype = beside(a.dtype, b, divides)
        return a.data.to(dtype), torch.tensor(b, dtype=dtype)
    if isinstance(b, Value):
        dtype = beside(b.dtype, a, divides)
        return torch.tensor(a, dtype=dtype), b.data.to(dtype)
    return pair(value(a), value(b), divides)


def _quotient(a, b):
    if not a.dtype.is_floating_point:
        a, b = a.float(), b.float()
    return a / b


def _floor(a, b):
    if a.dtype.is_floating_point:
        raise TypeError("// is for integers")
    return torch.div(a, b, rounding_mode="trunc")


def _operator(name, function, divides=False):
    def forward(self, other):
        if not isinstance(other, (Value, bool, int, float)):
            return NotImplemented
        return Value(function(*pair(self, other, divides)))

    def backward(self, other):
        return Value(function(*pair(other, self, divides)))

    setattr(Value, f"__{name}__", forward)
    setattr(Value, f"__r{name}__", backward)


for _name in ("add", "sub", "mul", "lshift", "rshift"):
    _operator(_name, getattr(operator, _name))
for _name in ("and", "or", "xor"):
    _operator(_name, getattr(operator, f"__{_name}__"))
_operator("truediv", _quotient, True)
_operator("floordiv", _floor, True)
_operator("mod", torch.fmod, True)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    _operator(_name, getattr(operator, _name))


class Buffer:
    """A tensor as memory: elements of the whole storage, numbered from `base`, which no other buffer shares."""

    count = 0

    def __init__(self, tensor: torch.Tensor):
        Buffer.count += 1
        self.base = Buffer.count << 40
        self.dtype = tensor.dtype
        self.first = tensor.storage_offset()
        self.size = tensor.untyped_storage().nbytes() // self.dtype.itemsize
        flat = tensor.as_strided((self.size,), (1,), 0)
        # Indexing is not there for fp8.
        self.raw = flat.view(torch.uint8) if self.dtype in FP8 else flat
        self.key = tensor.untyped_storage().data_ptr()

    def read(self, place: torch.Tensor) -> torch.Tensor:
        self.check(place)
        machine.touched(self.key, False)
        found = self.raw[place]
        return found.view(self.dtype) if self.dtype in FP8 else found

    def write(self, place: torch.Tensor, data: torch.Tensor) -> None:
        self.check(place)
        machine.touched(self.key, True)
        data = converted(data, self.dtype)
        data = data.view(torch.uint8) if self.dtype in FP8 else data
        self.raw[place] = data
        kept = self.raw[place]
        if not torch.equal(kept, data) and not torch.equal(kept.nan_to_num(), data.nan_to_num()):
            raise machine.Race("one store brings several values to one address")

    def check(self, place: torch.Tensor) -> None:
        if place.numel() and not 0 <= int(place.min()) <= int(place.max()) < self.size:
            raise machine.OutOfBounds(f"elements {int(place.min())} to {int(place.max())} of {self.size}")


class Pointer:
    """Addresses of elements, of one buffer or (where they were selected from several) of some."""

    __slots__ = ("buffers", "at")

    def __init__(self, buffers: tuple[Buffer, ...], at: torch.Tensor):
        self.buffers, self.at = buffers, at

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Pointer:
        buffer = Buffer(tensor)
        return cls((buffer,), torch.tensor(buffer.base + buffer.first))

    dtype = property(lambda self: SimpleNamespace(element_ty=self.buffers[0].dtype))
    shape = property(lambda self: list(self.at.shape))

    def __add__(self, other):
        offset = value(other).data
        if offset.dtype.is_floating_point:
            raise TypeError("an address takes whole offsets")
        if offset.ndim and self.at.ndim and offset.ndim != self.at.ndim:
            raise TypeError(f"shapes {list(self.at.shape)} and {list(offset.shape)} have not the same rank")
        return Pointer(self.buffers, self.at + offset.to(torch.int64))

    __radd__ = __add__

    def __sub__(self, other):
        return self + -value(other)

    def __getitem__(self, key):
        return Pointer(self.buffers, Value(self.at)[key].data)

    def load(self, mask=None, other=None, shape=None) -> torch.Tensor:
        at, dtype = self.at, self.buffers[0].dtype
        if shape is not None:
            at = at.expand(shape)
        live = torch.ones((), dtype=torch.bool) if mask is None else value(mask).data
        rest = poisoned((), dtype) if other is None else converted(value(other).data, dtype)
        at, live = torch.broadcast_tensors(at, live)
        out = rest.expand(at.shape).clone()
        self._each(at, live, lambda buffer, here: out.__setitem__(here, buffer.read(at[here] - buffer.base)))
        return out

    def store(self, data, mask=None) -> None:
        data = value(data).data
        live = torch.ones((), dtype=torch.bool) if mask is None else value(mask).data
        at, data, live = torch.broadcast_tensors(self.at, data, live)
        self._each(at, live, lambda buffer, here: buffer.write(at[here] - buffer.base, data[here]))

    def _each(self, at, live, access):
        if len(self.buffers) == 1:
            access(self.buffers[0], live)
            return
        known = torch.zeros_like(live)
        for buffer in self.buffers:
            here = live & (at >= buffer.base) & (at < buffer.base + buffer.size)
            access(buffer, here)
            known |= here
        if not torch.equal(known, live):
            raise machine.OutOfBounds("addresses of no buffer")
