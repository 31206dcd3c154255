"""Triton 3.6 takes int() of a one-element array where a scalar bounds a loop; NumPy 2.4 allows that for 0-d alone.

Import this before a kernel runs in Triton's interpreter.
"""

from triton.runtime import interpreter

_patch = interpreter._patch_lang_tensor


def _patch_index(tensor, *scope):
    _patch(tensor, *scope)
    put = scope[0].set_attr if scope else setattr
    put(tensor, "__index__", lambda self: int(self.handle.data.item()))


interpreter._patch_lang_tensor = _patch_index
