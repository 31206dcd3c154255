"""Kernels that each have one thing wrong, or nothing: what `atrex wiki advise` is tested on."""
