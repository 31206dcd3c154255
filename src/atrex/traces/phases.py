"""Which phase of serving a step is, from the name of the range that the engine puts around it.

`decode` and `prefill` are steps of one kind of request, `mixed` holds both. Forms, with where they come from:
vLLM `execute_context_N(toks)_generation_M(toks)`, since 0.26 with sums `sq sk sqsq sqsk`; before that
`execute_new_N_cached_M`, which cannot tell chunked prefill from decode. SGLang `step[DECODE bs=16 toks=..]`. ATOM
`prefill[bs=2 tok=16384]`. TensorRT-LLM `[Executor] _forward_step 7: 1 ctx reqs, 8 gen reqs`. Anything a user names
prefill or decode with `record_function`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

PREFILL, DECODE, MIXED, NONE = "prefill", "decode", "mixed", "none"
PHASES = (PREFILL, DECODE, MIXED, NONE)


@dataclass(frozen=True)
class Step:
    """What a step's name says. Counts that it does not give are None.

    `context_tokens`, `generation_tokens`: query tokens of the step. `context_kv`, `generation_kv`: summed key lengths.
    """

    phase: str
    context_requests: int | None = None
    context_tokens: int | None = None
    context_kv: int | None = None
    generation_requests: int | None = None
    generation_tokens: int | None = None
    generation_kv: int | None = None
    tokens: int | None = None
    certain: bool = True

    def filled_from(self, other: Step) -> Step:
        """This step with the counts of `other` where it has none: engines put two ranges around one step."""
        missing = {
            name: getattr(other, name)
            for name in self.__dataclass_fields__
            if name not in ("phase", "certain") and getattr(self, name) is None
        }
        return replace(self, **missing)

    def prefill_share(self) -> float | None:
        """Share of the step's query tokens that belong to prompts; None where a mixed step does not say."""
        if self.phase != MIXED:
            return {PREFILL: 1.0, DECODE: 0.0}.get(self.phase)
        if self.context_tokens is None or not (total := self.context_tokens + (self.generation_tokens or 0)):
            return None
        return self.context_tokens / total


_SUMS = r"sq(\d+)sk(\d+)sqsq\d+sqsk\d+"
_EXECUTE = re.compile(
    # One version wrote the sum of squared lengths behind the tokens: (888_788544).
    rf"^execute_(?:(\d+)_)?context_(\d+)\((?:{_SUMS}|(\d+)(?:_\d+)?)\)_generation_(\d+)\((?:{_SUMS}|(\d+)(?:_\d+)?)\)$"
)
_EXECUTE_OLD = re.compile(r"^execute_new_(\d+)_cached_(\d+)$")
_SGLANG = re.compile(r"^step\[([A-Z_]+) bs=(\d+)(?: toks=(\d+))?(.*)\]$")
_ATOM = re.compile(r"^(prefill|decode)\[(?:bs=(\d+))?[^\]]*?(?:tok=(\d+))?[^\]]*\]$")
_TRTLLM = re.compile(r"_forward_step\b.*?(\d+) ctx reqs(?:, (\d+) ctx tokens)?.*?(\d+) gen reqs")
_WORD = re.compile(r"(?:^|[^a-z])(prefill|decode)(?![a-z])", re.IGNORECASE)
_SGLANG_PHASES = {
    "EXTEND": PREFILL, "PREFILL": PREFILL, "SPLIT_PREFILL": PREFILL, "DLLM_EXTEND": PREFILL, "MIXED": MIXED,
    "DECODE": DECODE, "TARGET_VERIFY": DECODE, "VERIFY": DECODE, "DRAFT": DECODE, "DRAFT_EXTEND": DECODE,
    "DRAFT_EXTEND_V2": DECODE,
}  # fmt: skip
# SGLang's profile_by_stage and its users name a file per phase.
_FILE = re.compile(r"(?:^|[-_.])(EXTEND|DECODE|PREFILL|extend|decode|prefill)(?=[-_.]|$)")


def _of(context: int, generation: int) -> str:
    if context and generation:
        return MIXED
    return PREFILL if context else DECODE if generation else NONE


def parse_step(name: str) -> Step | None:
    """What the name of a range says about the step in it, or None if it names no step.

    A name that only contains the word prefill or decode counts too, as ranges of `record_function` do.
    """
    if found := _EXECUTE.match(name):
        total, context, sq, sk, plain, generation, gsq, gsk, gplain = (
            None if g is None else int(g) for g in found.groups()
        )
        return Step(
            phase=_of(context or 0, generation or 0), context_requests=context,
            context_tokens=sq if sq is not None else plain, context_kv=sk,
            generation_requests=generation, generation_tokens=gsq if gsq is not None else gplain,
            generation_kv=gsk, tokens=total,
        )  # fmt: skip
    if found := _EXECUTE_OLD.match(name):
        new, cached = int(found[1]), int(found[2])
        return Step(phase=_of(new, cached), context_requests=new, generation_requests=cached, certain=cached == 0)
    if found := _SGLANG.match(name):
        phase = _SGLANG_PHASES.get(found[1], NONE)
        batch, tokens = int(found[2]), int(found[3]) if found[3] else None
        if phase == PREFILL:
            return Step(phase, context_requests=batch, context_tokens=tokens, tokens=tokens)
        if phase == DECODE:
            return Step(phase, generation_requests=batch, generation_tokens=tokens or batch, tokens=tokens or batch)
        return Step(phase, tokens=tokens)
    if found := _ATOM.match(name):
        batch, tokens = (int(g) if g else None for g in found.groups()[1:])
        if found[1] == PREFILL:
            return Step(PREFILL, context_requests=batch, context_tokens=tokens, tokens=tokens)
        return Step(DECODE, generation_requests=batch, generation_tokens=tokens or batch, tokens=tokens or batch)
    if found := _TRTLLM.search(name):
        context, generation = int(found[1]), int(found[3])
        return Step(
            _of(context, generation), context_requests=context, generation_requests=generation,
            context_tokens=int(found[2]) if found[2] else None,
        )  # fmt: skip
    words = {w.lower() for w in _WORD.findall(name)}
    if len(words) == 1 and not name.startswith("##"):
        return Step(words.pop())
    return None


def phase_of_file(name: str) -> str | None:
    """The phase that a file's name states (`...-TP-0-DECODE.trace.json.gz`); None if it states none or both."""
    phases = {{"extend": PREFILL}.get(word.lower(), word.lower()) for word in _FILE.findall(name)}
    return phases.pop() if len(phases) == 1 else None
