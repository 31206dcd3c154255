"""Serving traces: readers, one schema, what launched each kernel, which operator it is, in which phase it ran."""
