"""Shapes of operators from traces: calls, their operands, and what configuration and typical values add."""
