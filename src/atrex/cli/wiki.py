"""`atrex wiki`: sourced cards on making kernels fast, found offline."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atrex.cli import wiki_drafts, wiki_sources

if TYPE_CHECKING:
    from atrex.wiki.hardware import Sheet
    from atrex.wiki.schema import Card

app = typer.Typer(no_args_is_help=True)
app.command("add-source")(wiki_sources.add_source)
app.command("sources")(wiki_sources.sources)
app.command("drafts")(wiki_drafts.drafts)

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
CardsOption = Annotated[Path | None, typer.Option("--cards", help="A folder of cards; default: the shipped ones.")]


@app.command()
def search(
    question: Annotated[list[str], typer.Argument(metavar="QUESTION...", help="Free text; names chips and DSLs too.")],
    arch: Annotated[str | None, typer.Option(help="Only cards that hold for it: sm_90, gfx942, ...")] = None,
    dsl: Annotated[str | None, typer.Option(help="Only cards for this DSL, or for any.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind: pattern, playbook, pitfall, ...")] = None,
    operator: Annotated[str | None, typer.Option(help="Only cards on this operator or a group that has it.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=50, help="How many cards at most.")] = 8,
    source: Annotated[str | None, typer.Option(help="Search a project that was added, not the cards.")] = None,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """The cards that answer a question, best first. Exit status 1 when none does."""
    from atrex.errors import UserError
    from atrex.wiki.load import CARDS
    from atrex.wiki.search import Filters, search

    if source is not None:
        if kind or operator or arch:
            raise UserError("--source goes with --dsl alone: symbols have no kind of card, operator or architecture")
        wiki_sources.search_source(source, " ".join(question), k, dsl, as_json)
        return
    answer = search(" ".join(question), Filters(arch, dsl, kind, operator), k, cards or CARDS)
    if as_json:
        print(json.dumps(answer.as_dict(), indent=2))
    elif not answer.hits:
        print(answer.why)
    for hit in [] if as_json else answer.hits:
        scope = " ".join(filter(None, [_scope(hit.arch), _scope(hit.dsl)]))
        marks = ", ".join(filter(None, [hit.kind, scope, *hit.verified]))
        print(f"{hit.id}  ({marks})\n    {hit.title}")
        if hit.claim:
            print(f"    {hit.claim}")
    if not answer.hits:
        raise typer.Exit(1)


@app.command()
def show(
    card_id: Annotated[str, typer.Argument(metavar="ID")],
    related: Annotated[bool, typer.Option("--related", help="Also what is up to two relations away.")] = False,
    code: Annotated[bool, typer.Option("--code", help="Of a kernel: its file alone, to start from.")] = False,
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """One card: what it says, its sources, how it was verified, and what it is related to."""
    from atrex.wiki.load import CARDS, load_wiki

    wiki = load_wiki(cards or CARDS)
    card = wiki.card(card_id)
    if code:
        print(_code(card), end="")
        return
    edges = wiki.related(card_id)
    away = {other: n for other, n in wiki.walk(card_id, 2).items() if n == 2} if related else {}
    if as_json:
        document = card.model_dump(mode="json", exclude_defaults=True) | {
            "related": [{"relation": edge.name, "card": edge.other} for edge in edges],
            "two_away": sorted(away),
        }
        print(json.dumps(document, indent=2))
        return
    print(_text(card))
    if edges:
        print("## Related\n")
        for edge in edges:
            print(f"- {edge.name.replace('_', ' ')}: {edge.other} ({wiki.card(edge.other).title})")
    for other in sorted(away):
        print(f"- two relations away: {other} ({wiki.card(other).title})")


@app.command()
def spec(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A chip (H200) or an architecture (sm_90, Hopper).")],
    field: Annotated[str | None, typer.Argument(metavar="FIELD", help="One value, such as memory.bandwidth.")] = None,
    as_json: JsonOption = False,
) -> None:
    """A sourced value of a chip or architecture, or the whole sheet."""
    from dataclasses import asdict

    from atrex.wiki.hardware import find_sheet, find_value

    sheet = find_sheet(name)
    if field is None:
        print(json.dumps(sheet.as_dict(), indent=2) if as_json else _sheet(sheet))
        return
    where, value = find_value(sheet, field)
    if as_json:
        print(json.dumps(asdict(value) | {"card": where.card, "shown": value.shown}, indent=2))
        return
    print(f"{where.name} {value.name}: {value}")
    print(f"  {value.source}, {value.url}, read {value.date} (card {where.card})")


@app.command()
def check(
    cards: CardsOption = None,
    drafts: Annotated[
        Path | None, typer.Option(help="A folder of drafts; default: wiki-drafts, if it is there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every card: schema, links, sources, figures, duplicates, kernels. Exit status 1 if something is wrong.

    Drafts are held to the same, and what is left to do on them does not change the exit status.
    """
    from dataclasses import asdict

    from atrex.errors import UserError
    from atrex.wiki.check import check_cards, checkout
    from atrex.wiki.drafts import FOLDER, check_drafts
    from atrex.wiki.load import CARDS

    for name, folder in (("--cards", cards), ("--drafts", drafts)):
        if folder is not None and not folder.is_dir():
            raise UserError(f"{name} {folder}: no such folder")
    root = checkout()
    wiki, findings = check_cards(cards or CARDS, root)
    wrong = [finding for finding in findings if not finding.note]
    drafted, left = check_drafts(drafts or FOLDER, wiki, root)
    sources = [source for card in wiki for source in card.sources]
    counts = {
        "cards": len(wiki.cards),
        "by_kind": dict(sorted(Counter(card.kind.value for card in wiki).items())),
        "by_arch": dict(sorted(Counter(arch for card in wiki for arch in card.arch).items())),
        "sources": len(sources),
        "verified": sum(bool(card.verified) for card in wiki),
        "wrong": len(wrong),
    }
    if as_json:
        of_drafts = {"drafts": len(drafted), "left": [asdict(finding) for finding in left]}
        print(json.dumps(counts | {"findings": [asdict(finding) for finding in findings]} | of_drafts, indent=2))
    else:
        for finding in findings:
            print(f"{finding}{' (note)' if finding.note else ''}")
        for finding in left:
            print(f"draft {finding}")
        for title, table in (("by kind", counts["by_kind"]), ("by architecture", counts["by_arch"])):
            print(f"{title}: " + ", ".join(f"{name} {n}" for name, n in table.items()))
        print(f"{len(wiki.cards)} cards, {len(sources)} sources, {counts['verified']} verified, {len(wrong)} wrong")
        if drafted or left:
            print(f"{len(drafted)} drafts, {len(left)} things left to do on them")
        if root is None:
            print("sources in the project were not looked up: this is no checkout", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)


@app.command()
def advise(
    evidence: Annotated[Path, typer.Argument(metavar="EVIDENCE.json", help="What `atrex profile` wrote.")],
    cards: CardsOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a profile's counters show, how much time each symptom may be worth, and the cards that help."""
    from atrex.profiling.evidence import read_evidence
    from atrex.wiki.advise import advise
    from atrex.wiki.load import CARDS

    read = read_evidence(evidence)
    advice = advise(read, cards or CARDS)
    if as_json:
        print(json.dumps(advice.as_dict(), indent=2))
        return
    print(f"{read.kernel.name[:80]} ({read.operator}/{read.shape} on {read.device}): {advice.verdict}")
    if advice.healthy:
        print("healthy: no symptom")
    for symptom in advice.symptoms:
        print(f"{symptom.title}: {symptom.says}; up to {symptom.recoverable_us:.1f} us")
        for card, title in zip(symptom.cards, symptom.card_titles, strict=True):
            print(f"    {card}: {title}")
    for note in advice.notes:
        print(f"note: {note}")
    if advice.unjudged:
        print(f"not judged, for want of counters: {', '.join(sorted(advice.unjudged))}")


def _code(card: Card) -> str:
    from atrex.errors import UserError
    from atrex.wiki.kernels import kernel_code

    if card.kernel is None:
        raise UserError(f"--code: {card.id} is a {card.kind}, expected a card of kind kernel")
    text = kernel_code(card)
    if text is None:
        raise UserError(f"--code: {card.kernel} is in the project's repository and did not ship with this package")
    return text


def _scope(names: list[str]) -> str:
    return "" if names == ["any"] else " ".join(names)


def _text(card: Card) -> str:
    lines = [f"# {card.title}", "", f"{card.id}: {card.kind}, {_about(card)}"]
    if card.statement:
        lines += ["", f"Claim: {card.statement.claim}", f"Test:  {card.statement.test}"]
    if card.mechanism:
        lines.append(f"Because: {card.mechanism}")
    lines += [f"Seen: {evidence.what} [{evidence.source}]" for evidence in card.evidence]
    for symptom in card.symptoms:
        ends = (("at least", symptom.min), ("at most", symptom.max))
        bounds = " and ".join(f"{word} {bound:g}" for word, bound in ends if bound is not None)
        lines.append(f"Symptom: {symptom.counter} {bounds}{f' ({symptom.note})' if symptom.note else ''}")
    for verification in card.verified:
        lines.append(
            f"Verified: {verification.level} on {verification.chip}, {verification.date}: {verification.record}"
        )
    lines += ["", card.body.strip(), "", "## Sources", ""]
    lines += [f"{n}. {source.title}, {source.where} ({source.date})" for n, source in enumerate(card.sources, 1)]
    return "\n".join([*lines, ""])


def _about(card: Card) -> str:
    parts: dict[str, Any] = {"vendor": [card.vendor], "arch": card.arch, "dsl": card.dsl, "operators": card.operators}
    return "; ".join(f"{name} {', '.join(names)}" for name, names in parts.items())


def _sheet(sheet: Sheet) -> str:
    width = max(len(name) for name in sheet.values)
    lines = [f"{sheet.name}: {sheet.title} (card {sheet.card})"]
    lines += [f"  {name:{width}}  {value}  [{value.source}, {value.url}]" for name, value in sheet.values.items()]
    return "\n".join(lines)
