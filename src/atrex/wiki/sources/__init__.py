"""Upstream projects, indexed where the user asks for it: their kernels by DSL, symbol, file and lines."""
