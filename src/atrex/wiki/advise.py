"""From evidence to advice: which symptoms the counters show, how much time each may be worth, which cards help.

Rules are data (`data/symptoms.yaml`). What may be won is bounded by the distance to the roofline: a symptom can cost no
more time than lies above it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from atrex.profiling.evidence import Evidence
from atrex.wiki.expression import Unknown, evaluate, names_in
from atrex.wiki.load import CARDS, Wiki, load_wiki
from atrex.wiki.schema import Card, Kind
from atrex.wiki.search import Filters, search
from atrex.wiki.vocabulary import DATA, read_yaml, vocabulary

CARDS_EACH = 3


@dataclass(frozen=True)
class Rules:
    """The rules and what they share."""

    names: Mapping[str, tuple[str, ...]]
    busy: Mapping[str, float]
    healthy_roofline: float
    least_share: float
    rules: tuple[Mapping[str, Any], ...]
    notes: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Symptom:
    """One finding: what was seen, the microseconds that mending it may win, and cards that tell how."""

    id: str
    title: str
    says: str
    recoverable_us: float
    share: float
    cards: list[str]
    card_titles: list[str]


@dataclass
class Advice:
    """Symptoms, most recoverable time first. `verdict` is one line on the kernel as a whole.

    `unjudged` names rules for which a counter is missing: nothing is known about them.
    """

    verdict: str
    healthy: bool
    symptoms: list[Symptom] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unjudged: dict[str, list[str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@lru_cache(maxsize=1)
def rules() -> Rules:
    """The shipped rules, each expression parsed once. Raises ValueError for one that names what no counter has."""
    data = read_yaml((DATA / "symptoms.yaml").read_text())
    for rule in [*data["rules"], *data["notes"]]:
        for text in (*rule["when"], rule.get("share", "0")):
            unknown = names_in(text) - set(data["names"])
            if unknown:
                raise ValueError(f"symptoms.yaml: {rule['id']}: unknown {', '.join(sorted(unknown))}")
    names = {name: (one,) if isinstance(one, str) else tuple(one) for name, one in data["names"].items()}
    return Rules(
        names, data["busy"], data["healthy_roofline"], data["least_share"], tuple(data["rules"]), tuple(data["notes"])
    )


def advise(evidence: Evidence, cards: Path = CARDS) -> Advice:
    """Advice for one profiled kernel."""
    shipped, figures = rules(), evidence.figures()
    values = {
        name: max(measured)
        for name, counters in shipped.names.items()
        if (measured := [figures[counter] for counter in counters if counter in figures])
    }
    duration = figures.get("atrex.duration_us")
    if duration is None:
        return Advice("no duration among the counters: nothing can be judged", healthy=False)
    above = max(0.0, duration - figures.get("atrex.roofline_us", 0.0))
    fired, unjudged = [], {}
    for rule in shipped.rules:
        try:
            share = _fires(rule, values)
        except Unknown:
            needed = set().union(*(names_in(text) for text in (*rule["when"], rule["share"])))
            unjudged[rule["id"]] = sorted(shipped.names[name][0] for name in needed - set(values))
            continue
        recoverable = min(above, (share or 0.0) * duration)
        if share is not None and recoverable >= shipped.least_share * duration:
            fired.append((recoverable, share, rule))
    healthy, verdict = _verdict(values, shipped, any(rule.get("waste") for _, _, rule in fired))
    if healthy:
        fired = []  # what a well used kernel still shows is a property of it
    fired.sort(key=lambda entry: (-entry[0], entry[2]["id"]))
    wiki = load_wiki(cards) if fired else None
    symptoms = []
    for recoverable, share, rule in fired:
        helpful = _cards(rule, evidence, figures, wiki, cards) if wiki else []
        says = rule["says"].format_map(values)
        symptoms.append(
            Symptom(
                rule["id"], rule["title"], says, round(recoverable, 2), round(share, 3),
                [card.id for card in helpful], [card.title for card in helpful],
            )
        )  # fmt: skip
    if not symptoms and not healthy:
        verdict += "; none of the rules explains the rest"
    return Advice(verdict, healthy, symptoms, _notes(values, evidence, cards), unjudged)


def _notes(values: Mapping[str, float], evidence: Evidence, cards: Path) -> list[str]:
    """What is to be said beside the kernel's own time, with the card that tells more."""
    notes = []
    for rule in rules().notes:
        try:
            if not all(evaluate(condition, values) for condition in rule["when"]):
                continue
        except Unknown:
            continue
        arch = evidence.arch if evidence.arch in vocabulary().architectures else None
        hits = search(rule["look"], Filters(arch=arch), k=1, cards=cards).hits
        notes.append(rule["says"].format_map(values) + (f" ({hits[0].id})" if hits else ""))
    return notes


def _fires(rule: Mapping[str, Any], values: Mapping[str, float]) -> float | None:
    """The share of time that a rule explains, None when it does not hold. Raises Unknown when it cannot be told."""
    unknown: Unknown | None = None
    for condition in rule["when"]:
        try:
            if not evaluate(condition, values):
                return None  # one condition that fails decides, whatever is unknown beside it
        except Unknown as error:
            unknown = error
    if unknown is not None:
        raise unknown
    return min(1.0, max(0.0, evaluate(rule["share"], values)))


def _verdict(values: Mapping[str, float], shipped: Rules, waste: bool) -> tuple[bool, str]:
    duration = f"{values['us']:.1f} us"
    loads = {name: values[name] for name in shipped.busy if name in values}
    busiest = max(loads, key=lambda name: loads[name] / shipped.busy[name], default=None)
    load = f", {busiest} at {loads[busiest]:.0f} % of its peak" if busiest else ""
    # A resource at its peak is no sign of health when it moves bytes that nobody asked for.
    well_used = busiest is not None and loads[busiest] >= shipped.busy[busiest] and not waste
    if "roof" in values:
        verdict = f"{duration}, {values['roof']:.0%} of the roofline{load}"
        return values["roof"] >= shipped.healthy_roofline or well_used, verdict
    return well_used, f"{duration}{load}, no roofline to compare with"


def _cards(
    rule: Mapping[str, Any], evidence: Evidence, figures: Mapping[str, float], wiki: Wiki, folder: Path
) -> list[Card]:
    """Cards for a symptom: those whose own symptoms on the rule's counters hold, then what search finds."""
    named = {name for text in (*rule["when"], rule["share"]) for name in names_in(text)}
    counters = {counter for name in named for counter in rules().names[name]}
    own = [
        card
        for card in wiki
        if card.kind in (Kind.PATTERN, Kind.PITFALL) and _in_scope(card, evidence)
        and any(s.counter in counters and s.counter in figures and s.holds(figures[s.counter]) for s in card.symptoms)
    ]  # fmt: skip
    arch = evidence.arch if evidence.arch in vocabulary().architectures else None
    question = f"{rule['look']} {evidence.operator} {evidence.dsl or ''}"
    hits = search(question, Filters(arch=arch, dsl=evidence.dsl), k=12, cards=folder).hits
    ranks = {hit.id: rank for rank, hit in enumerate(hits)}
    own.sort(key=lambda card: (ranks.get(card.id, len(ranks)), card.id))
    found = [wiki.card(hit.id) for hit in hits if hit.kind in (Kind.PATTERN, Kind.PITFALL, Kind.PLAYBOOK, Kind.RECIPE)]
    return list({card.id: card for card in [*own, *found]}.values())[:CARDS_EACH]


def _in_scope(card: Card, evidence: Evidence) -> bool:
    return ("any" in card.arch or evidence.arch in card.arch) and (
        evidence.dsl is None or "any" in card.dsl or evidence.dsl in card.dsl
    )
