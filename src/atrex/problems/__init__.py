"""The five-file problem contract: load, validate, materialize inputs, compare outputs. Knows nothing of evaluation."""

from atrex.problems.load import load_problem, load_suite
from atrex.problems.model import Problem, Shape, Suite

__all__ = ["Problem", "Shape", "Suite", "load_problem", "load_suite"]
