"""Candidates on disk: one file, or a directory with one file per operator."""

from __future__ import annotations

import ast
import hashlib
import inspect
from dataclasses import dataclass
from pathlib import Path

from atrex.errors import UserError
from atrex.files import read_source
from atrex.scoring.records import Origin


@dataclass(frozen=True)
class Candidate:
    """One candidate file for one operator. `name` is the path as given; `set_name` groups the files of a directory.

    `origin` is set for a baseline, which is no one's candidate.
    """

    path: Path
    name: str
    set_name: str
    operator: str
    source: str
    origin: Origin | None = None

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()


def resolve(arguments: list[str], operators: list[str], problem: str | None) -> list[Candidate]:
    """The candidates that the arguments name.

    A file belongs to `problem`, or else to the operator its name says; of a directory every `<operator>.py` counts.
    Raises UserError for what is missing, empty, not Python, or has no Model class.
    """
    check_problem(problem, operators)
    found: list[Candidate] = []
    for argument in (each for given in arguments for each in _sets(given)):
        path = Path(argument)
        if path.is_dir():
            names = [problem] if problem else operators
            files = [(path / f"{name}.py", name) for name in names if (path / f"{name}.py").is_file()]
            if not files:
                known = ", ".join(names)
                raise UserError(f"{argument}: no <operator>.py in this directory; expected one of {known}")
            found += [_read(file, str(argument).rstrip("/"), name) for file, name in files]
        elif path.is_file():
            operator = problem or path.stem
            if operator not in operators:
                raise UserError(
                    f"{argument}: {operator!r} is no operator of the suite; rename the file or give --problem OP"
                )
            found.append(_read(path, str(argument), operator))
        else:
            raise UserError(f"{argument}: no such candidate; expected a .py file or a directory of <operator>.py files")
    return found


def check_problem(problem: str | None, operators: list[str]) -> None:
    """Raise UserError for a --problem that is no operator."""
    if problem is not None and problem not in operators:
        raise UserError(f"--problem {problem}: unknown operator; expected one of {', '.join(operators)}")


def _sets(argument: str) -> list[str]:
    """A folder that `atrex generate` has written stands for the candidate sets in it, one for each sample."""
    folder = Path(argument)
    if not (folder / "generate.json").is_file():
        return [argument]
    return [str(each) for each in sorted(folder.glob("sample-*"), key=lambda path: int(path.name.split("-")[1]))]


def _read(path: Path, set_name: str, operator: str) -> Candidate:
    return Candidate(path, str(path), set_name, operator, read_source(path))


def static_fault(candidate: Candidate, reference_forward, init_kwargs: dict) -> tuple[str, str] | None:
    """What is wrong with the file before anything runs: (compile category, one line), or None.

    `reference_forward` is the reference's `forward`; a candidate's must take the same operands.
    """
    if not candidate.source.strip():
        return "not_a_module", f"{candidate.path}: empty file; expected a class Model"
    try:
        tree = ast.parse(candidate.source)
    except (RecursionError, MemoryError):
        return "exception", f"{candidate.path}: nested too deeply to be parsed"
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        return "exception", f"{candidate.path}:{line}: syntax error: {getattr(error, 'msg', error)}"
    if not _binds(tree, "Model"):
        return "not_a_module", f"{candidate.path}: no Model; expected a class Model(torch.nn.Module)"
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Model":
            return _signature_fault(candidate, node, reference_forward, init_kwargs)
    return None


def _binds(tree: ast.Module, name: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, (ast.Import, ast.ImportFrom)) and any(
            (alias.asname or alias.name) in (name, "*") for alias in node.names
        ):
            return True
    return False


def _signature_fault(candidate: Candidate, model: ast.ClassDef, reference_forward, init_kwargs: dict):
    methods = {n.name: n for n in model.body if isinstance(n, ast.FunctionDef)}
    operands = [p for p in inspect.signature(reference_forward).parameters if p != "self"]
    forward = methods.get("forward")
    if forward is not None:
        args = forward.args
        names = [a.arg for a in args.posonlyargs + args.args][1:]
        required = len(names) - len(args.defaults)
        needs = [a.arg for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True) if d is None]
        if not args.vararg and len(names) < len(operands) or required > len(operands) or needs:
            return "not_a_module", (
                f"{candidate.path}:{forward.lineno}: Model.forward takes ({', '.join(names + needs)}), "
                f"expected ({', '.join(operands)})"
            )
    init = methods.get("__init__")
    if init is not None and not init.args.kwarg:
        args = init.args
        names = [a.arg for a in args.posonlyargs + args.args][1:] + [a.arg for a in args.kwonlyargs]
        missing = [k for k in init_kwargs if k not in names]
        if missing:
            return "not_a_module", (
                f"{candidate.path}:{init.lineno}: Model.__init__ takes ({', '.join(names)}), "
                f"expected ({', '.join(init_kwargs)})"
            )
    return None
