"""Whose a device kernel is, from its name alone.

Names are those that activity records carry: C++ kernels mangled or demangled, Triton kernels as written. The families
are those of cuBLAS/cuBLASLt, cuDNN, CUTLASS, NCCL, PyTorch and their ROCm counterparts, as they appear in public
profiles. A DSL session knows the kernels it saw compiled and asks this table about the rest.
"""

from __future__ import annotations

import re
from typing import Literal

Owner = Literal["target", "dsl", "vendor", "torch", "copy", "unknown"]

_COPY = re.compile(r"^(\[CUDA )?mem(cpy|set)\b|^mem(cpy|set)|^__amd_rocclr_(copy|fill)Buffer", re.IGNORECASE)

# A CUB or Thrust kernel inside PyTorch lives in the namespace at_cuda_detail.
_TORCH = re.compile(
    r"^_ZN(K)?2at(\d|_)|^_ZN\d+at_cuda_detail|^_ZN3c10|^_ZN\d+_GLOBAL__N__\w*_cu_|^_ZN5torch"
    r"|^(void )?(\(anonymous namespace\)::)?(at::|at_cuda_detail::|c10::|torch::)"
)

# Names that no author of a DSL kernel writes by chance.
_VENDOR_SURE = re.compile(
    r"^nvjet_|_?xmma_|^cutlass(_\d\d|3x_|\d?::)|^_ZN7cutlass|cublas|cudnn|cusparse|cufft|cusolver|^nccl|^rccl"
    r"|^(volta|turing|ampere|hopper|maxwell)_[a-z0-9_]*gemm|^Cijk_"
    r"|^_ZN(2ck|7ck_tile|5aiter)|^(void )?(ck|ck_tile|aiter)::"
    r"|^_ZN13pytorch_flash|pytorch_flash::|PyTorchMemEffAttention|^fmha_cutlass|^_ZN8internal5gemvx|internal::gemvx"
    r"|^(sm\d\d_|void )?.*cask_|^miopen|rocblas"
)

# Library names that a candidate's own kernel might carry too: they count as a vendor's only if nobody claims them.
_VENDOR_LIKELY = re.compile(
    r"splitKreduce|^(void )?gemv(2T|2N|NSP)|^(void )?gemm(SN|k1)|^(void )?dot_kernel<|^(void )?reduce_1Block"
    r"|^(_ZN5flash|(void )?flash::)|flash_(fwd|bwd)_|^_ZN10flashinfer|flashinfer::|deep_gemm|^_ZN9deep_gemm"
    r"|^_ZN4vllm|^(void )?vllm::|cutlass"
)

# Code that torch.compile generates, named by kind of fusion.
_DSL = re.compile(r"^triton_(poi|red|per|tem|mm|bmm|for|unk)_|^triton_[a-z]*_?fused_")


def sure(name: str) -> Owner | None:
    """The owner when the name alone decides it, whatever a candidate calls its kernels; None otherwise."""
    if not name:
        return None
    if _COPY.search(name):
        return "copy"
    if _TORCH.search(name):
        return "torch"
    if _VENDOR_SURE.search(name):
        return "vendor"
    return None


def classify(
    name: str, target: frozenset[str] | set[str] = frozenset(), dsl: frozenset[str] | set[str] = frozenset()
) -> Owner:
    """Owner of the kernel `name`, given the names seen compiled from the candidate (`target`) and elsewhere (`dsl`).

    A name in both sets cannot be told apart and counts as `dsl`. Target names that are a vendor's or PyTorch's beyond
    doubt do not count: a Triton kernel called `nvjet_...` must not claim a GEMM of cuBLAS.
    """
    if (owner := sure(name)) is not None:
        return owner
    if name in dsl:
        return "dsl"
    if name in target:
        return "target"
    if _DSL.search(name):
        return "dsl"
    if _VENDOR_LIKELY.search(name):
        return "vendor"
    return "unknown"
