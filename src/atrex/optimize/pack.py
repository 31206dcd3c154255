"""What a campaign hands over: one self-contained file, judged again in a clean process with new seeds."""

from __future__ import annotations

import ast
import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from atrex.errors import UserError
from atrex.files import write
from atrex.optimize.lab import Lab
from atrex.optimize.store import Campaign
from atrex.scoring.records import Status, UnitRecord

# Beside Python's own: what the DSLs and their launches are made of.
_ALLOWED = frozenset(("torch", "triton", "cutlass", "cuda", "flydsl", "numpy", "__future__"))
_READS = frozenset(("open", "read_text", "read_bytes", "fromfile", "loadtxt"))


@dataclass(frozen=True)
class Packed:
    """The file, its hash, and the records of its last judgement."""

    path: Path
    sha256: str
    records: list[UnitRecord]


def refusals(source: str, name: str) -> list[str]:
    """Why a kernel is not one self-contained file, a line each; empty when it is."""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return [f"{name}:{error.lineno}: syntax error: {error.msg}"]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.append(f"{name}:{node.lineno}: a relative import; one file has to do")
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        for module in modules:
            top = module.split(".")[0]
            if top not in _ALLOWED and top not in sys.stdlib_module_names:
                found.append(f"{name}:{node.lineno}: imports {top}, which is none of what a kernel may need")
        if isinstance(node, ast.Call) and _reads(node):
            found.append(f"{name}:{node.lineno}: reads a file; the kernel must bring all it needs")
    return found


def _reads(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", None)
    if name not in _READS:
        return False
    mode = next((k.value for k in call.keywords if k.arg == "mode"), call.args[1] if len(call.args) > 1 else None)
    return not (name == "open" and isinstance(mode, ast.Constant) and set("wax") & set(str(mode.value)))


def pack(campaign: Campaign, lab: Lab, out: Path) -> Packed:
    """Write the accepted kernel to `out`. Raises UserError for what is not self-contained or does not pass again."""
    if campaign.incumbent is None:
        raise UserError(f"{campaign.path}: no accepted kernel yet; there is nothing to pack")
    source = campaign.kernel.read_text(encoding="utf-8")
    if found := refusals(source, campaign.kernel.name):
        raise UserError(found[0] + (f" (and {len(found) - 1} more)" if len(found) > 1 else ""))
    records = lab.judge(campaign.kernel)
    for record in records:
        if record.verdict.status is not Status.PASSED:
            raise UserError(f"{campaign.kernel}: does not pass again: {record.shape}: {record.verdict.reason}")
    campaign.measured("packed-judge.jsonl", "\n".join(record.model_dump_json() for record in records))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out, source)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    return Packed(out, hashlib.sha256(source.encode()).hexdigest(), records)
