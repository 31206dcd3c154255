"""The operators' references held against implementations that others wrote.

`python -m benchmarks.references --device cpu` runs every check that the installed libraries allow and leaves one
record an operator under results/references; docs/references.md says what they show.
"""
