"""Kernels that do the same work in another binary: names, order of functions and statements, and dead code are drawn.

RMSNorm in C++ (CPU) and in Triton. Every kernel of a DSL reads, computes and writes the same in the same loops; what is
padded is never run.
"""

from __future__ import annotations

import random
import string

_CPP = '''"""RMSNorm, one of many that do the same: number {seed}."""

import ctypes
import os
import subprocess
import tempfile

import torch

SOURCE = r"""
{source}
"""


def build():
    # A worker's private cache, where there is one: units of this kernel compile once.
    folder = os.environ.get("TORCH_EXTENSIONS_DIR") or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    library = os.path.join(folder, "{symbol}.so")
    if not os.path.exists(library):
        source, made = os.path.join(folder, "{symbol}.cpp"), f"{{library}}.{{os.getpid()}}"
        with open(source, "w") as file:
            file.write(SOURCE)
        done = subprocess.run(["g++", "-O1", "-shared", "-fPIC", source, "-o", made], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        os.rename(made, library)
    loaded = getattr(ctypes.CDLL(library), "{symbol}")
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    loaded.argtypes = [pointer, pointer, pointer, size, size, size, ctypes.c_float]
    loaded.restype = None
    return loaded


KERNEL = build()


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows, hidden = x.shape
        out = torch.empty(x.shape, dtype=x.dtype)
        KERNEL(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, hidden, x.stride(0), self.eps)
        return out
'''

_CPP_PARTS = {
    "widen": "static float {widen}(uint16_t {bits}) {{ return __builtin_bit_cast(float, uint32_t({bits}) << 16); }}",
    "narrow": """static uint16_t {narrow}(float {value}) {{
  uint32_t {bits} = __builtin_bit_cast(uint32_t, {value});
  return uint16_t({value} != {value} ? 0x7FC0u : ({bits} + 0x7FFFu + (({bits} >> 16) & 1u)) >> 16);
}}""",
    "squares": """static float {squares}(const uint16_t* {from}, int64_t {count}) {{
  float {sum} = 0;
  for (int64_t {index} = 0; {index} < {count}; ++{index}) {{
    const float {value} = {widen}({from}[{index}]);
    {sum} += {value} * {value};
  }}
  return {sum};
}}""",
    "apply": """static void {apply}(const uint16_t* {from}, const uint16_t* {weight}, uint16_t* {to}, int64_t {count},
                                    float {scale}) {{
  for (int64_t {index} = 0; {index} < {count}; ++{index})
    {to}[{index}] = {narrow}({widen}({from}[{index}]) * {scale} * {widen}({weight}[{index}]));
}}""",
}  # fmt: skip
_CPP_PROTOTYPES = [
    "static float {widen}(uint16_t);", "static uint16_t {narrow}(float);",
    "static float {squares}(const uint16_t*, int64_t);",
    "static void {apply}(const uint16_t*, const uint16_t*, uint16_t*, int64_t, float);",
]  # fmt: skip
_CPP_ENTRY = """extern "C" void {symbol}(const uint16_t* {x}, const uint16_t* {weight}, uint16_t* {out}, int64_t {rows},
                         int64_t {count}, int64_t {stride}, float {eps}) {{
  for (int64_t {row} = 0; {row} < {rows}; ++{row}) {{
    {statements}
    const float {scale} = 1.0f / __builtin_sqrtf({squares}({from}, {count}) / float({count}) + {eps});
    {apply}({from}, {weight}, {to}, {count}, {scale});
  }}
}}"""

_TRITON = '''"""RMSNorm, one of many that do the same: number {seed}."""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["{rows}", "{never}"])
def {symbol}({x}, {weight}, {out}, {rows}, {stride}, {eps}, {never}, {count}: tl.constexpr, {block}: tl.constexpr):
    {row} = tl.program_id(0).to(tl.int64)
    {index} = tl.arange(0, {block})
    {inside} = {index} < {count}
    {loads}
    {sum} = tl.sum({value} * {value}, axis=0)
    {scale} = tl.rsqrt({sum} / {count} + {eps})
    {padding}
    {to} = {out} + {row} * {count} + {index}
    tl.store({to}, ({value} * {scale} * {factor}).to({out}.dtype.element_ty), mask={inside})


class Model(torch.nn.Module):
    def __init__(self, eps: float):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows, hidden = x.shape
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        block = triton.next_power_of_2(hidden)
        {symbol}[(rows,)](x, weight, out, rows, x.stride(0), self.eps, 0, hidden, block, num_warps=4)
        return out
'''


def kernel(dsl: str, seed: int) -> str:
    """A candidate of rms_norm in `cpp` or `triton`. Seeds give different binaries of equal work."""
    rng = random.Random(f"{dsl}/{seed}")
    return {"cpp": _cpp, "triton": _triton}[dsl](seed, rng)


class _Names(dict):
    """A new name for every role."""

    def __init__(self, rng: random.Random):
        super().__init__()
        self._rng = rng

    def __missing__(self, role: str) -> str:
        letters = "".join(self._rng.choice(string.ascii_lowercase) for _ in range(self._rng.randint(4, 12)))
        self[role] = f"{letters}_{len(self)}"
        return self[role]


def _cpp(seed: int, rng: random.Random) -> str:
    names = _Names(rng)
    parts = [text.format_map(names) for text in _CPP_PARTS.values()]
    pads = [_cpp_padding(rng, names[f"pad{i}"]) for i in range(rng.randint(1, 6))]
    statements = [
        "const uint16_t* {from} = {x} + {row} * {stride};".format_map(names),
        "uint16_t* {to} = {out} + {row} * {count};".format_map(names),
    ]
    rng.shuffle(statements)
    names["statements"] = "\n    ".join(statements)
    body = [*parts, *pads, _CPP_ENTRY.format_map(names)]
    rng.shuffle(body)
    prototypes = [text.format_map(names) for text in _CPP_PROTOTYPES]
    rng.shuffle(prototypes)
    source = "\n\n".join(["#include <cstdint>", "\n".join(prototypes), *body])
    return _CPP.format(seed=seed, source=source, symbol=names["symbol"])


def _cpp_padding(rng: random.Random, name: str) -> str:
    lines = [
        f"  v[{i}] = v[{i}] * {rng.uniform(0.5, 2):.4f}f + v[{rng.randrange(8)}];" for i in range(rng.randint(1, 8))
    ]
    return "\n".join([f'extern "C" void {name}(float* v) {{', *lines, "}"])


def _triton(seed: int, rng: random.Random) -> str:
    names = _Names(rng)
    loads = [
        "{value} = tl.load({x} + {row} * {stride} + {index}, mask={inside}, other=0.0).to(tl.float32)".format_map(
            names
        ),
        "{factor} = tl.load({weight} + {index}, mask={inside}, other=0.0).to(tl.float32)".format_map(names),
    ]
    rng.shuffle(loads)
    names["loads"] = "\n    ".join(loads)
    added = " + ".join(f"{rng.uniform(0.5, 2):.4f}" for _ in range(rng.randint(1, 3)))
    padding = f"if {names['never']} == {rng.randint(1, 1 << 20)}:"  # the host passes 0
    stored = (
        f"tl.store({names['out']} + {names['index']}, ({names['sum']} * ({added})).to({names['out']}.dtype.element_ty))"
    )
    names["padding"] = f"{padding}\n        {stored}"
    names["seed"] = str(seed)
    return _TRITON.format_map(names)
