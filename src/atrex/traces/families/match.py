"""One kernel, one family: the rules asked with the kernel's name and what stood around its launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atrex.traces import names
from atrex.traces.families.rules import Compiled, RuleSet, load_rules
from atrex.traces.families.versions import Version
from atrex.traces.linking import Context

OTHER, ELEMENTWISE = "other", "elementwise"
NO_CONTEXT = Context()
# Families that stand in chains as a token of their own.
ANCHORS = {
    "gemm": "gemm", "block_scaled_mm": "gemm", "attention_forward": "attention", "unified_attention": "attention",
    "paged_attention_decode": "attention", "rms_norm": "norm", "fused_add_rms_norm": "norm",
}  # fmt: skip


@dataclass(frozen=True)
class Assignment:
    """`rule`: which rule decided, `file:number`, or `class:NAME` where only the kernel's class did.

    `evidence`: what it looked at, of kernel, op, module, frame, annotation and class. `phase`: what the kernel says
    about its step, if anything.
    """

    family: str
    operator: str | None
    rule: str
    evidence: tuple[str, ...]
    phase: str | None = None


class Matcher:
    """Applies a rule set to the kernels of one trace. `versions`: package -> version, where the trace's are known."""

    def __init__(self, rules: RuleSet | None = None, versions: Mapping[str, Version] | None = None) -> None:
        self.rules = rules if rules is not None else load_rules()
        known = versions or {}
        asked = [
            r for r in self.rules.rules if r.range is None or r.package not in known or known[r.package] in r.range
        ]
        self._kernel_rules = [r for r in asked if r.rule.names_kernel]
        self._context_rules = [r for r in asked if not r.rule.names_kernel]
        self._by_name: dict[str, tuple[str, list[Compiled]]] = {}
        self._computes: dict[str, str] = {}

    def is_group(self, name: str) -> bool:
        """Whether a range of this name is one call of an MoE layer."""
        return any(pattern.search(name) for pattern in self.rules.groups.values())

    def framework(self, names: Iterable[str]) -> str | None:
        """The engine that ran, by the names of processes, operators and frames; None if none of them tells."""
        seen = dict.fromkeys(self.rules.engines, 0)
        for name in names:
            for engine, pattern in self.rules.engines.items():
                if pattern.search(name):
                    seen[engine] += 1
        best = max(seen, key=lambda engine: seen[engine], default=None)
        return best if best is not None and seen[best] else None

    def computes(self, name: str) -> str:
        """The token of what a kernel computes, by its name alone; '' where it does not say."""
        found = self._computes.get(name)
        if found is None:
            anchor = ANCHORS.get(self.classify(name).family)
            found = self._computes[name] = anchor or self.rules.chains.token(name)
        return found

    def classify(self, name: str, kind: str = "kernel", context: Context = NO_CONTEXT, dtypes: str = "") -> Assignment:
        """The family of a device record. `kind`: kernel, memcpy, memset or graph."""
        kernel_class, candidates = self._candidates(name, kind)
        best, best_key = None, None
        for tier, rules in ((1, candidates), (0, self._context_rules)):
            for position, one in enumerate(rules):
                depth = _holds(one, kernel_class, context, dtypes)
                if depth is None:
                    continue
                key = (one.rule.priority, tier, depth, one.conditions, -position)
                if best_key is None or key > best_key:
                    best, best_key = one, key
        if best is not None:
            evidence = tuple(_EVIDENCE[f] for f in best.patterns) + (("class",) if best.classes else ())
            return self._assignment(best.rule.family, best.id, tuple(dict.fromkeys(evidence)), best.rule.phase)
        for known, _, _ in self.rules.classes:
            if known.name == kernel_class:
                return self._assignment(known.family, f"class:{kernel_class}", ("class",), None)
        family = {"memcpy": "copy", "memset": "copy", "graph": "graph"}.get(kernel_class)
        if family in self.rules.families:
            return self._assignment(family, f"class:{kernel_class}", ("class",), None)
        return self._assignment(OTHER, "", (), None)

    def _assignment(self, family: str, rule: str, evidence: tuple[str, ...], phase: str | None) -> Assignment:
        return Assignment(family, self.rules.families[family].operator, rule, evidence, phase)

    def _candidates(self, name: str, kind: str) -> tuple[str, list[Compiled]]:
        """(class of the kernel, the kernel rules whose name conditions hold), kept per name."""
        if kind != "kernel":
            return kind, []
        found = self._by_name.get(name)
        if found is None:
            parsed = names.parse(name)
            rules = [r for r in self._kernel_rules if _name_holds(r, parsed, name)]
            found = self._by_name[name] = (self._class(parsed, name), rules)
        return found

    def _class(self, parsed: names.KernelName, name: str) -> str:
        for known, kernel, text in self.rules.classes:
            if kernel is not None and not kernel.search(parsed.base):
                continue
            if text is not None and not (text.search(parsed.text) or text.search(name)):
                continue
            return known.name
        return "unknown"


_EVIDENCE = {
    "kernel": "kernel", "text": "kernel", "op": "op", "ops": "op", "module": "module", "modules": "module",
    "frame": "frame", "frames": "frame", "annotations": "annotation", "dtypes": "dtypes",
}  # fmt: skip


def _name_holds(one: Compiled, parsed: names.KernelName, name: str) -> bool:
    if (pattern := one.patterns.get("kernel")) is not None and not pattern.search(parsed.base):
        return False
    if (pattern := one.patterns.get("text")) is not None and not (pattern.search(parsed.text) or pattern.search(name)):
        return False
    for position, pattern in one.args.items():
        try:
            value = parsed.args[position]
        except IndexError:
            return False
        if not pattern.fullmatch(value):
            return False
    return True


def _holds(one: Compiled, kernel_class: str, context: Context, dtypes: str) -> float | None:
    """How far inside the operator that the rule looked at stands (0 without one), or None if the rule fails."""
    patterns = one.patterns
    if one.classes and kernel_class not in one.classes:
        return None
    for field, value in (("op", context.op), ("module", context.module), ("frame", context.frame)):
        pattern = patterns.get(field)
        if pattern is not None and (value is None or not pattern.search(value)):
            return None
    if (pattern := patterns.get("dtypes")) is not None and not pattern.search(dtypes):
        return None
    for field, values in (("modules", context.modules), ("frames", context.frames),
                          ("annotations", context.annotations)):  # fmt: skip
        pattern = patterns.get(field)
        if pattern is not None and not any(pattern.search(v) for v in values):
            return None
    depth = 0.0
    if (pattern := patterns.get("ops")) is not None:
        matched = [i for i, op in enumerate(context.ops) if pattern.search(op)]
        if not matched:
            return None
        depth = (matched[-1] + 1) / len(context.ops)
    if "op" in patterns:
        depth = 1.0
    return depth
