"""Shared memory, barriers, TMA, cp.async and the tensor cores of Hopper, as Gluon names them, on the machine.

A product runs where it is waited for, a copy lands when the machine says so (cp.async: where it is waited for), and
the bytes that a copy will bring are poisoned from its start.
"""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import torch

from tests.kernels import machine
from tests.kernels.machine import Bulk, Copy, now
from tests.kernels.values import FP8, Pointer, Value, poisoned, value


class Layout:
    """Layouts say where elements are; values do not depend on it."""

    def __init__(self, *arguments, **named):
        pass

    def places(self, shape, dtype) -> torch.Tensor:
        """Where the elements of a block lie in shared memory."""
        return torch.arange(math.prod(shape)).view(*shape)


class NVMMASharedLayout(Layout):
    """Columns of swizzle_byte_width lie together, all rows of them. (How they are swizzled among eight rows is the
    same wherever eight rows begin.)"""

    def __init__(self, swizzle_byte_width, element_bitwidth, rank=2, transposed=False, **named):
        if transposed:
            raise NotImplementedError("transposed layouts")
        self.width, self.rank = swizzle_byte_width, rank

    @staticmethod
    def get_default_for(block_shape, dtype, **named):
        inner = block_shape[-1] * dtype.itemsize
        width = next((n for n in (128, 64, 32) if inner >= n and inner % n == 0), 0)
        return NVMMASharedLayout(width, dtype.itemsize * 8, len(block_shape))

    def places(self, shape, dtype):
        columns = self.width // dtype.itemsize
        if not columns or shape[-1] <= columns:
            return super().places(shape, dtype)
        rows = math.prod(shape[-self.rank : -1])
        blocks = torch.arange(math.prod(shape)).view(-1, shape[-1] // columns, rows, columns)
        return blocks.transpose(1, 2).reshape(*shape)


class BarrierLayout(Layout):
    pass


class Barrier:
    def __init__(self):
        self.count = None

    def init(self, count: int) -> None:
        self.count = self.left = count
        self.bytes = self.phase = 0

    def arrive(self, arrivals: int, nbytes: int = 0) -> None:
        self.known()
        self.left -= arrivals
        self.bytes += nbytes
        self.settle()

    def settle(self) -> None:
        if self.left < 0:
            raise machine.Fault("more arrivals than a barrier counts")
        if self.left == 0 and self.bytes == 0:
            self.phase += 1
            self.left = self.count

    def known(self) -> None:
        if self.count is None:
            raise machine.Fault("a barrier that nobody initialized")

    def check_done(self) -> None:
        if self.count is not None and self.bytes:
            raise machine.Fault(f"a barrier that still waits for {self.bytes} bytes")


class Barriers:
    """Barriers in shared memory."""

    def __init__(self, count: int):
        self.barriers = [Barrier() for _ in range(count)]
        self.shape = [count, 1]
        now().program.barriers += self.barriers

    def index(self, i) -> Barrier:
        return self.barriers[place(i, len(self.barriers))]


def place(i, count: int) -> int:
    i = int(value(i).data)
    if not 0 <= i < count:
        raise machine.OutOfBounds(f"entry {i} of {count}")
    return i


def _one(barrier) -> Barrier:
    return barrier.index(0) if isinstance(barrier, Barriers) else barrier


def _init(barrier, count=1):
    _one(barrier).init(count)


def _arrive(barrier, *, count=1, pred=True):
    if pred:
        _one(barrier).arrive(count)
        now().program.turn()


def _expect(barrier, nbytes, pred=True):
    if pred:
        _one(barrier).arrive(1, nbytes)


def _wait(barrier, phase, pred=True, deps=()):
    if pred:
        barrier, phase = _one(barrier), int(value(phase).data)
        barrier.known()
        now().program.wait(lambda: barrier.phase % 2 != phase)


mbarrier = SimpleNamespace(MBarrierLayout=BarrierLayout, init=_init, arrive=_arrive, expect=_expect, wait=_wait,
                           invalidate=lambda barrier: None)  # fmt: skip


class Smem:
    """A view of shared memory: elements of `flat` at `at`."""

    def __init__(self, flat: torch.Tensor, at: torch.Tensor, layout=None):
        self.flat, self.at, self.layout = flat, at, layout

    dtype = property(lambda self: self.flat.dtype)
    shape = property(lambda self: list(self.at.shape))
    type = property(lambda self: SimpleNamespace(layout=self.layout, shape=self.shape, element_ty=self.dtype))

    @functools.cached_property
    def span(self) -> tuple[int, int]:
        size, first = self.dtype.itemsize, self.flat.data_ptr()
        return first + int(self.at.min()) * size, first + (int(self.at.max()) + 1) * size

    @property
    def data(self) -> torch.Tensor:
        return _raw(self.flat)[self.at].view(self.dtype)

    def put(self, data: torch.Tensor) -> None:
        _raw(self.flat)[self.at] = _raw(data)

    def poison(self) -> None:
        self.put(poisoned(self.shape, self.dtype))

    def index(self, i):
        return Smem(self.flat, self.at[place(i, self.at.shape[0])], self.layout)

    def slice(self, start, length, dim=0):
        return Smem(self.flat, self.at.narrow(dim, start, length), self.layout)

    def permute(self, order):
        return Smem(self.flat, self.at.permute(*order), self.layout)

    def reshape(self, shape):
        return Smem(self.flat, self.at.reshape(*shape), self.layout)

    def _reinterpret(self, dtype, shape, layout):
        first, last = int(self.at.min()), int(self.at.max()) + 1
        if last - first != self.at.numel() or math.prod(shape) * dtype.itemsize > (last - first) * self.dtype.itemsize:
            raise machine.OutOfBounds(f"{shape} of {dtype} in {self.shape} of {self.dtype}")
        return Smem(self.flat[first:last].view(dtype), (layout or Layout()).places(shape, dtype), layout)

    def load(self, layout=None):
        machine.reads(self.span)
        return Value(self.data)

    def store(self, x):
        machine.writes(self.span)
        if x.dtype != self.dtype or x.shape != self.shape:
            raise TypeError(f"{x.shape} of {x.dtype} stored as {self.shape} of {self.dtype}")
        self.put(x.data)
        now().program.unfenced.append(self.span)


def _raw(data: torch.Tensor) -> torch.Tensor:
    """Indexing is not there for fp8."""
    return data.view(torch.uint8) if data.dtype in FP8 else data


def allocate_shared_memory(dtype, shape, layout=None, value=None):
    if isinstance(layout, BarrierLayout):
        return Barriers(shape[0])
    smem = Smem(poisoned([math.prod(shape)], dtype), (layout or Layout()).places(shape, dtype), layout)
    if value is not None:
        smem.store(value)
    return smem


def fence_async_shared(cluster=False):
    now().program.unfenced.clear()


class Descriptor:
    """A box of a tensor as TMA takes it: what lies outside reads as zeros and is not written."""

    def __init__(self, base, shape, strides, block_shape, layout=None, padding="zero"):
        size = base.dtype.itemsize
        if strides[-1] != 1 or any(stride * size % 16 for stride in strides[:-1]) or base.data_ptr() % 16:
            raise machine.Fault(f"TMA takes no strides of {list(strides)} elements of {size} bytes")
        if block_shape[-1] * size % 16 or any(not 0 < n <= 256 for n in block_shape):
            raise machine.Fault(f"TMA takes no box of {list(block_shape)} elements of {size} bytes")
        self.view = base.as_strided(tuple(shape), tuple(strides), base.storage_offset())
        self.key = base.untyped_storage().data_ptr()
        self.shape, self.strides, self.block_shape, self.layout = list(shape), strides, list(block_shape), layout
        self.dtype = base.dtype
        nbytes = math.prod(block_shape) * size
        self.block_type = SimpleNamespace(shape=self.block_shape, nbytes=nbytes, element_ty=base.dtype)

    @staticmethod
    def from_tensor(tensor, block_shape, layout=None, padding="zero"):
        return Descriptor(tensor, tensor.shape, tensor.stride(), block_shape, layout)

    def parts(self, corner):
        """Slices of the tensor and of the box."""
        corner = [int(value(c).data) for c in corner]
        low = [max(c, 0) for c in corner]
        high = [max(min(c + b, n), first) for c, b, n, first in
                zip(corner, self.block_shape, self.shape, low, strict=True)]  # fmt: skip
        whole = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
        return whole, tuple(slice(a - c, b - c) for a, b, c in zip(low, high, corner, strict=True))

    def box(self, corner) -> torch.Tensor:
        machine.touched(self.key, False)
        whole, inside = self.parts(corner)
        box = torch.zeros(self.block_shape, dtype=self.dtype)
        box[inside] = self.view[whole]
        return box

    def put(self, corner, box: torch.Tensor) -> None:
        machine.touched(self.key, True)
        whole, inside = self.parts(corner)
        self.view[whole] = box[inside]

    def load(self, corner):
        return Value(self.box(corner))

    def store(self, corner, x):
        if x.dtype != self.dtype or x.shape != self.block_shape:
            raise TypeError(f"{x.shape} of {x.dtype} stored as {self.block_shape} of {self.dtype}")
        self.put(corner, x.data)


def _bulk_in(desc, corner, barrier, smem, pred=True):
    if not pred:
        return
    if smem.shape != desc.block_shape or smem.dtype != desc.dtype:
        raise TypeError(f"a box of {desc.block_shape} into {smem.shape}")
    machine.writes(smem.span)
    barrier, nbytes = _one(barrier), desc.block_type.nbytes
    data = desc.box(corner)
    smem.poison()

    def arrived():
        barrier.bytes -= nbytes
        barrier.settle()

    program = now().program
    program.flying.append(Bulk(smem, data, arrived))
    program.turn()


class Leaving:
    """A box on its way out of shared memory, which is read when the store is waited for."""

    def __init__(self, desc, corner, smem):
        self.desc, self.corner, self.smem, self.sources = desc, corner, smem, [smem.span]

    def run(self):
        machine.reads(self.smem.span, fenced=True)
        self.desc.put(self.corner, self.smem.data)


def _bulk_out(desc, corner, smem):
    if smem.shape != desc.block_shape or smem.dtype != desc.dtype:
        raise TypeError(f"a box of {desc.block_shape} from {smem.shape}")
    machine.reads(smem.span, fenced=True)
    now().stores.append(Leaving(desc, [int(value(c).data) for c in corner], smem))


def _bulk_out_wait(pendings):
    stores = now().stores
    now().program.turn()
    while len(stores) > pendings:
        stores.pop(0).run()


tma = SimpleNamespace(async_copy_global_to_shared=_bulk_in, async_copy_shared_to_global=_bulk_out,
                      store_wait=_bulk_out_wait)  # fmt: skip


def _copy_in(smem, pointer: Pointer, mask=None, **hints):
    machine.writes(smem.span)
    copy = Copy(smem, pointer.load(mask, value(0.0), tuple(smem.shape)))
    smem.poison()
    now().open.append(copy)
    now().program.flying.append(copy)


def _commit():
    now().groups.append(now().open)
    now().open = []


def _wait_group(num_outstanding=0):
    warps = now()
    while len(warps.groups) > num_outstanding:
        for copy in warps.groups.pop(0):
            copy.land()
            warps.program.flying.remove(copy)
            warps.program.unfenced.append(copy.span)


async_copy = SimpleNamespace(async_copy_global_to_shared=_copy_in, commit_group=_commit, wait_group=_wait_group)


def tf32(data: torch.Tensor) -> torch.Tensor:
    bits = data.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32).where(data.isfinite(), data)


def product(a: torch.Tensor, b: torch.Tensor, exact: bool = False) -> torch.Tensor:
    if a.dtype != b.dtype or a.shape[1] != b.shape[0]:
        raise TypeError(f"no product of {list(a.shape)} of {a.dtype} and {list(b.shape)} of {b.dtype}")
    if a.dtype == torch.float32 and not exact:
        a, b = tf32(a), tf32(b)
    return a.float() @ b.float()


class Product:
    """A product of a warpgroup that is under way; its sums are there when it has been waited for."""

    def __init__(self, a, b, acc):
        self.a, self.b, self.acc, self.out = a, b, acc, None
        self.shape, self.dtype = [a.shape[0], b.shape[1]], torch.float32
        self.sources = [x.span for x in (a, b) if isinstance(x, Smem)]
        self.check()

    def check(self):
        for x in (self.a, self.b):
            if isinstance(x, Smem):
                machine.reads(x.span, fenced=True)

    def run(self):
        self.check()
        out = product(self.a.data, self.b.data)
        if self.acc is not None:
            out = out + (self.acc.out if isinstance(self.acc, Product) else self.acc.data)
        self.out = out


def warpgroup_mma(a, b, acc, *, use_acc=True, is_async=False, precision=None, max_num_imprecise_acc=None):
    if acc.shape != [a.shape[0], b.shape[1]]:
        raise TypeError(f"sums of {acc.shape} for {a.shape} by {b.shape}")
    work = Product(a, b, acc if use_acc else None)
    now().products.append(work)
    return work if is_async else warpgroup_mma_wait(0, deps=[work])


def warpgroup_mma_wait(num_outstanding=0, deps=()):
    products = now().products
    now().program.turn()
    while len(products) > num_outstanding:
        products.pop(0).run()
    got = [Value(x.out) if isinstance(x, Product) and x.out is not None else x for x in deps]
    return got[0] if len(got) == 1 else tuple(got)


def mma_v2(a, b, acc, **options):
    return Value(product(a.data, b.data) + acc.data)
