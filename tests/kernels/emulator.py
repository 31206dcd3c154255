"""Triton and Gluon kernels run as the Python that they are, over torch on the CPU; neither package is needed.

`load` executes a candidate's file with stand-ins for what it imports from triton: values.py holds its arithmetic and
memory, hopper.py the asynchronous parts, machine.py the order in which things happen. bfloat16 and fp8 are themselves,
so a candidate takes the suite's inputs as they are. Programs run in an order drawn from a seed, outputs start poisoned,
and accesses are checked. Layouts of registers, what the warps of one partition see of each other, and speed are left to
the compiler and the device.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import math
import sys
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch
from benchmarks.kernel_files import kernel_file

from tests.kernels import asm, hopper, machine
from tests.kernels.values import HALVES, Pointer, Value, converted, pair, poisoned, value


class constexpr:
    """A mark on parameters; around a value, the value."""

    def __new__(cls, x):
        return x


def cdiv(a, b):
    return (a + b - 1) // b


def next_power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length() if n > 1 else 1


class Kernel:
    """A function under @jit: called by kernels, launched by the host."""

    OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_pdl", "launch_cooperative_grid"}

    def __init__(self, function):
        self.function, self.parameters = function, inspect.signature(function).parameters
        self.__name__ = function.__name__

    def __call__(self, *arguments, **named):
        return self.function(*arguments, **named)

    def __getitem__(self, grid):
        grid = tuple(int(n) for n in grid) + (1,) * (3 - len(grid))
        if min(grid) < 1 or max(grid[1:]) > 65535:
            raise machine.Fault(f"no grid of {grid}")
        return lambda *arguments, **named: self._launch(grid, arguments, named)

    def _launch(self, grid, arguments, named):
        strange = set(named) - set(self.parameters) - self.OPTIONS
        if strange:
            raise TypeError(f"{self.__name__} has no parameter {', '.join(sorted(strange))}")
        taken = {name: x for name, x in named.items() if name in self.parameters}
        bound = inspect.signature(self.function).bind(*arguments, **taken)
        bound.apply_defaults()
        for name, x in bound.arguments.items():
            if self.parameters[name].annotation is not constexpr:
                bound.arguments[name] = _operand(x)
        machine.stream().warps = named.get("num_warps", 4)
        machine.stream().launch(
            self.__name__, lambda: self.function(*bound.args, **bound.kwargs), grid, bool(named.get("launch_pdl"))
        )


def _operand(x):
    if isinstance(x, torch.Tensor):
        return Pointer.of(x)
    return value(x) if isinstance(x, (bool, int, float)) else x


def jit(function=None, **options):
    return Kernel(function) if function else Kernel


def loop(*bounds, num_stages=None, flatten=None, warp_specialize=None, **hints):
    """range: in a kernel, its numbers are values."""
    numbers = builtins.range(*(int(b) if isinstance(b, Value) else b for b in bounds))
    return map(value, numbers) if machine.running() else numbers


def number(function):
    return lambda *arguments, **named: Value(function(*arguments, **named))


def floats(function):
    def applied(x):
        x = value(x)
        if x.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"no function of {x.dtype}")
        return Value(function(x.data))

    return applied


def arange(start, end, layout=None):
    if (end - start) & (end - start - 1):
        raise TypeError(f"arange takes powers of two, not {end - start}")
    return Value(torch.arange(start, end, dtype=torch.int32))


def full(shape, x, dtype, layout=None):
    return Value(converted(value(x).data, dtype).expand(tuple(shape)).clone())


def where(condition, a, b):
    chosen = value(condition).data
    if isinstance(a, Pointer):
        at = torch.where(chosen, *torch.broadcast_tensors(a.at, b.at))
        return Pointer(tuple(dict.fromkeys(a.buffers + b.buffers)), at)
    return Value(torch.where(chosen, *pair(a, b)))


def larger(a, b):
    a, b = pair(a, b)
    return Value(torch.fmax(a, b))


def smaller(a, b):
    a, b = pair(a, b)
    return Value(torch.fmin(a, b))


def total(x, axis=None, keep_dims=False):
    data = x.data
    if not data.dtype.is_floating_point and data.dtype.itemsize < 4:
        data = data.to(torch.int32)
    axis = list(range(data.ndim)) if axis is None else axis
    return Value(data.sum(axis, keepdim=keep_dims, dtype=data.dtype))


def _extreme(find, x, axis, keep_dims, nothing):
    data = x.data.float() if x.dtype in HALVES else x.data
    axis = list(range(data.ndim)) if axis is None else axis
    if not data.dtype.is_floating_point or not data.isnan().any():
        return Value(find(data, axis, keepdim=keep_dims))
    # A NaN loses against every number.
    found = find(data.nan_to_num(nothing, math.inf, -math.inf), axis, keepdim=keep_dims)
    return Value(torch.where(data.isnan().all(axis, keepdim=keep_dims), math.nan, found))


def highest(x, axis=None, keep_dims=False):
    return _extreme(torch.amax, x, axis, keep_dims, -math.inf)


def lowest(x, axis=None, keep_dims=False):
    return _extreme(torch.amin, x, axis, keep_dims, math.inf)


def reduce(x, axis, combine, keep_dims=False):
    parts = [one.data for one in (x if isinstance(x, tuple) else (x,))]
    while parts[0].shape[axis] > 1:
        halves = [part.chunk(2, axis) for part in parts]
        got = combine(*(Value(half[0]) for half in halves), *(Value(half[1]) for half in halves))
        parts = [one.data for one in (got if isinstance(got, tuple) else (got,))]
    parts = [Value(part if keep_dims else part.squeeze(axis)) for part in parts]
    return tuple(parts) if isinstance(x, tuple) else parts[0]


def associative_scan(x, axis, combine, reverse=False):
    parts = [one.data.flip(axis) if reverse else one.data for one in (x if isinstance(x, tuple) else (x,))]
    size, step = parts[0].shape[axis], 1
    while step < size:
        before = (Value(part.narrow(axis, 0, size - step)) for part in parts)
        here = (Value(part.narrow(axis, step, size - step)) for part in parts)
        got = combine(*before, *here)
        got = got if isinstance(got, tuple) else (got,)
        parts = [torch.cat([part.narrow(axis, 0, step), one.data], axis) for part, one in zip(parts, got, strict=True)]
        step *= 2
    parts = [Value(part.flip(axis) if reverse else part) for part in parts]
    return tuple(parts) if isinstance(x, tuple) else parts[0]


def cumsum(x, axis=0):
    return Value(x.data.cumsum(axis, dtype=x.dtype))


def sort(x, dim=None, descending=False):
    return Value(x.data.sort(-1 if dim is None else dim, descending=descending).values)


def gather(source, index, axis):
    if not 0 <= int(index.data.min()) <= int(index.data.max()) < source.shape[axis]:
        raise machine.OutOfBounds(f"gather takes elements of {source.shape[axis]}")
    return Value(source.data.gather(axis, index.data.long()))


def histogram(x, bins, mask=None):
    data = x.data if mask is None else x.data[mask.data]
    if data.numel() and not 0 <= int(data.min()) <= int(data.max()) < bins:
        raise machine.OutOfBounds(f"{int(data.min())} to {int(data.max())} in {bins} bins")
    return Value(torch.bincount(data, minlength=bins).to(torch.int32))


def split(x):
    if x.shape[-1] != 2:
        raise TypeError(f"split takes a last dimension of 2, not {x.shape}")
    return Value(x.data[..., 0]), Value(x.data[..., 1])


def join(a, b):
    return Value(torch.stack(torch.broadcast_tensors(*pair(a, b)), -1))


def broadcast(a, b):
    return tuple(map(Value, torch.broadcast_tensors(value(a).data, value(b).data)))


def permute(x, *order):
    order = order[0] if len(order) == 1 else order
    return Value(x.data.permute(*(order or (1, 0))))


def trans(x, *order):
    return permute(x, *order) if order else x.T


def reshape(x, *shape, can_reorder=False):
    found = x.reshape(*shape)
    return Value(found.data.flip(0)) if can_reorder else found


def dot(a, b, acc=None, *, input_precision=None, out_dtype=torch.float32, allow_tf32=None, max_num_imprecise_acc=None):
    found = hopper.product(a.data, b.data, exact=input_precision not in (None, "tf32"))
    return Value(found.to(out_dtype)) if acc is None else Value(found + acc.data)


def load(pointer, mask=None, other=None, cache_modifier=None, eviction_policy=None, volatile=False):
    return Value(pointer.load(mask, other))


def store(pointer, x, mask=None, cache_modifier=None, eviction_policy=None):
    pointer.store(x, mask)


def inline_asm_elementwise(text, constraints, args, dtype, is_pure, pack):
    arguments = list(torch.broadcast_tensors(*(value(x).data for x in args)))
    several = isinstance(dtype, (tuple, list))
    found = [Value(x) for x in asm.run(text, arguments, list(dtype) if several else [dtype], pack)]
    return tuple(found) if several else found[0]


def gdc_wait():
    machine.now().program.early = False


def static_assert(condition, message=""):
    assert condition, message


def same(x, *arguments, **named):
    return x


def nothing(*arguments, **named):
    return None


def _language() -> dict:
    types = ("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "float8_e5m2")
    return {
        **{name: getattr(torch, name) for name in types}, "int1": torch.bool, "float8e4nv": torch.float8_e4m3fn,
        "constexpr": constexpr, "arange": arange, "full": full, "where": where, "maximum": larger, "minimum": smaller,
        "zeros": lambda shape, dtype, layout=None: full(shape, 0, dtype), "sum": total, "max": highest, "min": lowest,
        "zeros_like": lambda x: full(x.shape, 0, x.dtype), "full_like": lambda x, n: full(x.shape, n, x.dtype),
        "reduce": reduce, "associative_scan": associative_scan,
        "cumsum": cumsum, "sort": sort, "gather": gather, "histogram": histogram, "split": split,
        "join": join, "broadcast": broadcast, "permute": permute, "trans": trans, "reshape": reshape, "dot": dot,
        "load": load, "store": store, "inline_asm_elementwise": inline_asm_elementwise, "cdiv": cdiv,
        "exp": floats(torch.exp), "exp2": floats(torch.exp2), "log": floats(torch.log), "log2": floats(torch.log2),
        "sqrt": floats(torch.sqrt), "rsqrt": floats(torch.rsqrt), "abs": lambda x: Value(x.data.abs()),
        "program_id": lambda axis: value(machine.now().program.place[axis]),
        "num_programs": lambda axis: value(machine.now().program.grid[axis]),
        "num_warps": lambda: machine.stream().warps,
        "range": loop, "static_range": builtins.range, "static_assert": static_assert,
        "max_contiguous": same, "multiple_of": same, "convert_layout": same, "debug_barrier": nothing,
        "thread_barrier": nothing, "allocate_shared_memory": hopper.allocate_shared_memory,
        "warp_specialize": lambda parts, warps, registers: machine.now().program.specialize(parts),
    }  # fmt: skip


LAYOUTS = ("NVMMADistributedLayout", "BlockedLayout", "SliceLayout", "DotOperandLayout",
           "DistributedLinearLayout", "SwizzledSharedLayout")  # fmt: skip


def _modules() -> dict[str, ModuleType]:
    """What stands for triton and what lies in it, by name."""
    cuda = {"gdc_wait": gdc_wait, "gdc_launch_dependents": nothing}
    language = _language()
    async_parts = {name: getattr(hopper, name) for name in (
        "mbarrier", "tma", "async_copy", "warpgroup_mma", "warpgroup_mma_wait", "fence_async_shared")}  # fmt: skip
    contents = {
        "triton": {"jit": jit, "cdiv": cdiv, "next_power_of_2": next_power_of_2},
        "triton.language": {**language, "extra": SimpleNamespace(cuda=SimpleNamespace(**cuda))},
        "triton.language.extra": {},
        "triton.language.extra.cuda": cuda,
        "triton.tools": {},
        "triton.tools.tensor_descriptor": {"TensorDescriptor": hopper.Descriptor},
        "triton.experimental": {},
        "triton.experimental.gluon": {"jit": jit, "constexpr_function": same},
        "triton.experimental.gluon.language": {
            **language,
            **dict.fromkeys(LAYOUTS, hopper.Layout),
            "NVMMASharedLayout": hopper.NVMMASharedLayout,
        },
        "triton.experimental.gluon.language.nvidia": {},
        "triton.experimental.gluon.language.nvidia.ampere": {"mma_v2": hopper.mma_v2, "async_copy": hopper.async_copy},
        "triton.experimental.gluon.language.nvidia.hopper": {**async_parts, "warpgroup_mma_init": same},
        "triton.experimental.gluon.nvidia": {},
        "triton.experimental.gluon.nvidia.hopper": {"TensorDescriptor": hopper.Descriptor},
    }
    found = {}
    for name, inside in contents.items():
        found[name] = ModuleType(name)
        vars(found[name]).update(inside)
        parent, _, last = name.rpartition(".")
        if parent and not hasattr(found[parent], last):
            setattr(found[parent], last, found[name])
    return found


def execute(source: str, name: str) -> ModuleType:
    """A candidate's module, its kernels emulated."""
    module = ModuleType(name)
    with mock.patch.dict(sys.modules, _modules()):
        exec(compile(source, name, "exec", dont_inherit=True), vars(module))
    # Where a kernel says range, its numbers have to be values.
    module.range = loop
    return module


def load_candidate(operator: str, *changes: tuple[str, str]) -> ModuleType:
    """The H200 candidate of an operator, each (old, new) of `changes` made in its source."""
    path = kernel_file(operator)
    source = path.read_text()
    for old, new in changes:
        assert source.count(old) == 1, f"{operator}.py does not say {old!r} once"
        source = source.replace(old, new)
    return execute(source, str(path))


@contextlib.contextmanager
def stream(seed: int = 0):
    """A stream for launches; what the host allocates is poisoned."""

    def empty(*shape, dtype=torch.float32, device=None):
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return poisoned(shape, dtype)

    def empty_like(x, dtype=None, device=None):
        return torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype).copy_(poisoned(x.shape, x.dtype))

    with mock.patch.object(torch, "empty", empty), mock.patch.object(torch, "empty_like", empty_like):
        yield machine.start(seed)
