"""A question in free text: the concepts in it, and the chips, languages and operators that it names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from atrex.errors import UserError
from atrex.wiki.vocabulary import DATA, read_yaml, vocabulary

# What a hit counts by how the card says it: in the question's words, joined, by another name, in part, by a related
# name.
ASKED, JOINED, SAME, PARTLY, NEAR = 1.0, 0.95, 0.75, 0.35, 0.3
# Names of architectures and languages decide the scope; as words they say little about the subject.
SCOPE_WORD = 0.4
# Of a pasted log or page, so many words are read.
MOST = 120

Words = tuple[str, ...]


@dataclass(frozen=True)
class Concept:
    """One thing asked for: ways to say it (phrases for the full-text table) with their weights; `weight` in the sum."""

    asked: str
    phrases: Mapping[str, float]
    weight: float = 1.0


@dataclass
class Query:
    """What was understood of a question. Empty sets mean that nothing was said about it."""

    text: str
    concepts: list[Concept] = field(default_factory=list)
    arch: set[str] = field(default_factory=set)
    vendors: set[str] = field(default_factory=set)
    dsl: set[str] = field(default_factory=set)
    operators: set[str] = field(default_factory=set)
    kinds: set[str] = field(default_factory=set)
    languages: list[str] = field(default_factory=list)  # DSLs in the order in which they are named


@dataclass(frozen=True)
class _Tables:
    names: Mapping[Words, tuple[str, str]]  # phrase -> (arch | vendor | dsl | chip, its name)
    same: Mapping[Words, tuple[str, ...]]
    near: Mapping[Words, tuple[str, ...]]
    kinds: Mapping[Words, str]
    skip: frozenset[str]


def words_of(text: str) -> list[str]:
    """The words of a text: runs of letters and digits, lower case."""
    return re.findall(r"[a-z0-9]+", text.lower())


def _fold(words: Iterable[str]) -> Words:
    return tuple(w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in words)


def _key(phrase: str) -> Words:
    return _fold(words_of(phrase))


@lru_cache(maxsize=1)
def _tables() -> _Tables:
    known = vocabulary()
    data = read_yaml((DATA / "synonyms.yaml").read_text())
    names: dict[Words, tuple[str, str]] = {}
    for arch, about in known.architectures.items():
        names |= {_key(word): ("arch", arch) for word in [arch, *about["words"]]}
        names |= {_key(chip): ("chip", arch) for chip in about["chips"]}
    for kind, table in (("vendor", known.vendors), ("dsl", known.dsls)):
        for name, words in table.items():
            for word in words:
                names.setdefault(_key(word), (kind, name))
    return _Tables(
        names=names,
        same=_by_phrase(data["same"]),
        near=_by_phrase(data["near"]),
        kinds={_key(phrase): kind for kind, phrases in data["kinds"].items() for phrase in phrases},
        skip=frozenset(map(str, data["skip"])),
    )


def _by_phrase(groups: list[list[str]]) -> dict[Words, tuple[str, ...]]:
    table: dict[Words, tuple[str, ...]] = {}
    for group in groups:
        for phrase in group:
            others = [other for other in map(str, group) if other != phrase]
            table[_key(str(phrase))] = (*table.get(_key(str(phrase)), ()), *others)
    return table


def understand(text: str) -> Query:
    """Read a question. Longer names win: "block scaled gemm" is one concept, not three.

    Raises UserError when it names nothing.
    """
    tables, query = _tables(), Query(text)
    compounds = [words_of(compound) for compound in re.findall(r"[A-Za-z0-9]+(?:[-_.]+[A-Za-z0-9]+)*", text)[:MOST]]
    words = [word for compound in compounds for word in compound]
    whole = {sum(map(len, compounds[:i])): len(compound) for i, compound in enumerate(compounds)}
    folded = _fold(words)
    for phrase in tables.kinds:
        if any(folded[i : i + len(phrase)] == phrase for i in range(len(folded))):
            query.kinds.add(tables.kinds[phrase])
    at = 0
    while at < len(words):
        length = _longest(folded, at, tables)
        if length == 1 and not any(
            (word,) in table
            for word in folded[at : at + whole.get(at, 1)]
            for table in (tables.names, tables.same, tables.near)
        ):
            length = whole.get(at, 1)  # num_warps, tl.multiple_of, a counter: one name that the tables do not have
        asked, key = " ".join(words[at : at + length]), folded[at : at + length]
        at += length
        if key in tables.names:
            _scope(query, asked, *tables.names[key])
        elif length > 1 or asked not in tables.skip:
            query.concepts.append(_concept(asked, key, tables))
            query.operators |= _operators([asked, *tables.same.get(key, ())])
    query.operators |= _composed(query, tables)
    if not query.concepts:
        raise UserError(f"nothing to search for in {text!r}: name a technique, an operator, a counter or a chip")
    return query


def _longest(folded: Words, at: int, tables: _Tables) -> int:
    for length in range(min(6, len(folded) - at), 1, -1):
        key = folded[at : at + length]
        if key in tables.names or key in tables.same or key in tables.near:
            return length
    return 1


def _scope(query: Query, asked: str, kind: str, name: str) -> None:
    if kind in ("arch", "chip"):
        query.arch.add(name)
    elif kind == "vendor":
        query.vendors.add(name)
    else:
        query.dsl.add(name)
        query.languages += [name] if name not in query.languages else []
    weight = 1.0 if kind == "chip" else SCOPE_WORD
    query.concepts.append(Concept(asked, {asked: ASKED}, weight))


def _concept(asked: str, key: Words, tables: _Tables) -> Concept:
    phrases: dict[str, float] = {asked: ASKED}
    words = asked.split()
    if len(words) > 1:
        phrases.setdefault("".join(words), JOINED)
    for weight, table in ((SAME, tables.same), (NEAR, tables.near)):
        for other in table.get(key, ()):
            phrases.setdefault(" ".join(words_of(other)), weight)
    if len(words) > 1:
        for word in words:
            if word not in tables.skip:
                phrases.setdefault(word, PARTLY)
    return Concept(asked, phrases)


def _composed(query: Query, tables: _Tables) -> set[str]:
    """Operators whose name is put together from several concepts: fp8 quantization fused into rmsnorm."""
    said: set[str] = set()
    for concept in query.concepts:
        said.update(_fold(words_of(concept.asked)))
        for name in tables.same.get(_key(concept.asked), ()):
            said.update(_key(name))
    found = set()
    for operator in vocabulary().operators:
        words = set(_key(operator)) - {"fused"}
        if len(words) > 1 and words <= said:
            found.add(operator)
    return found


def _operators(names: Iterable[str]) -> set[str]:
    known = vocabulary()
    spelled = {" ".join(words_of(name)): name for name in (*known.operators, *known.groups)}
    return {spelled[plain] for name in names if (plain := " ".join(words_of(name))) in spelled}
