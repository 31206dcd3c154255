"""Pages of a campaign: its timeline, every attempt with evidence, plan, change and measurement, what agents said."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from atrex.errors import UserError
from atrex.generate.transcript import read
from atrex.optimize.store import Campaign
from atrex.report import figures
from atrex.report.campaigns import campaign_document
from atrex.report.site.campaign_plots import contest_plot, gains_plot, timeline_plot
from atrex.report.site.lists import CAMPAIGNS, Told
from atrex.report.site.page import Nav, Site, slug
from atrex.report.site.table import Cell, Heading, TableView, number

LONGEST_TEXT = 20_000  # characters of one event of a transcript, or of a diff, on a page; its file has the rest
MOST_EVENTS = 1500
KINDS = {
    "baseline": "passed", "promoted": "passed", "failed": "failed", "slower_shape": "failed", "fallback": "failed",
    "no_gain": "skipped", "duplicate": "skipped", "not_selected": "skipped",
    "undecided": "error",
}  # fmt: skip


def campaign_pages(
    site: Site, path: Path, name: str, title: Callable[[str], str | None], chips: Collection[str]
) -> Told:  # fmt: skip
    """Write the pages of one campaign below `campaigns/`, with its records; returns what leads there.

    `name` tells it from other campaigns of the site, `title` gives the title of a card of the wiki, None for a card
    without a page; `chips` are the chips with one.
    """
    campaign = Campaign(path)
    document = campaign_document(campaign, title)
    settings = document["settings"]
    called = f"{settings['operator']} in {settings['dsl']} on {settings['chip']}: {name}"
    at = folder_of(name)
    _Pages(site, campaign, document, called, at, title, chips).write()
    return Told(called, f"{at}/index.html", document)


def folder_of(name: str) -> str:
    """Where the pages of the campaign of this name stand."""
    return f"campaigns/{slug(name)}"


class _Pages:
    def __init__(self, site: Site, campaign: Campaign, document: dict[str, Any], name: str, at: str,
                 title: Callable[[str], str | None], chips: Collection[str]) -> None:  # fmt: skip
        self.site, self.campaign, self.document, self.name, self.at = site, campaign, document, name, at
        self.title, self.chips = title, chips
        self.crumbs = (CAMPAIGNS, Nav(name, f"{at}/index.html"))

    def write(self) -> None:
        site, document = self.site, self.document
        whole = site.json(f"{self.at}/campaign", document)
        rows = [{key: row[key] for key in _COLUMNS} for row in document["iterations"]]
        table = whole | site.csv(f"{self.at}/iterations", _COLUMNS, rows)
        for each in ("campaign.json", "roofline.json", "masks.jsonl", "spend.jsonl", "widths.jsonl"):
            self._record(each)
        transcripts = {s["transcript"] for s in document["spend"]["sessions"] if s["transcript"]}
        for each in sorted(transcripts):
            self._transcript(each)
        attempts = document["iterations"]
        for i, row in enumerate(attempts):
            self._attempt(row, attempts[i - 1] if i else None, attempts[i + 1] if i + 1 < len(attempts) else None)
        for row in document["open"]:
            for each in row["records"]:
                self._record(each)
        site.page(
            f"{self.at}/index.html", "campaign.html", title=self.name, crumbs=(CAMPAIGNS,), plots=True,
            document=document, figures_=self._figures(), timeline=timeline_plot(document, self._page, table),
            gains=gains_plot(document, self._page, table), iterations=self._iterations(table), masks=self._masks(whole),
            cards=self._cards(whole), shapes=self._shapes(whole), ceilings=self._ceilings(whole),
            spend=self._spend(whole), record=self._path, data=whole,
        )  # fmt: skip

    # -- where things stand ----------------------------------------------------------------------------------------

    def _page(self, number: int) -> str:
        return f"{self.at}/attempt-{number:04d}.html"

    def _path(self, record: str) -> str:
        return f"{self.at}/records/{record}"

    def _record(self, record: str) -> str | None:
        """Copy a file of the campaign beside its pages; its path there."""
        source = self.campaign.path / record
        return self.site.binary(self._path(record), source.read_bytes()) if source.is_file() else None

    def _of(self, row: Mapping[str, Any], *endings: str) -> str | None:
        """Where the first record of an attempt stands whose name ends so."""
        found = (r for ending in endings for r in row["records"] if r.endswith(ending))
        record = next(found, None)
        return self._path(record) if record else None

    def _card(self, card: str) -> Cell:
        told = self.title(card)
        return Cell(card, href=f"wiki/{card}.html" if told else None, hint=told, kind="code")

    # -- the first page --------------------------------------------------------------------------------------------

    def _figures(self) -> list[tuple[str, Cell]]:
        document, all_ = self.document, self.document["summary"]
        spend, last = document["spend"], all_["incumbent"]
        usd = figures.DASH if spend["usd"] is None else f"${spend['usd']:.2f}"
        outcomes = ", ".join(f"{n} {_words(what)}" for what, n in all_["outcomes"].items())
        tried = f"{all_['attempts']} attempts: {outcomes}" if all_["attempts"] != all_["iterations"] else outcomes
        return [
            ("S of the kernel", Cell(
                figures.score(all_["incumbent_S"]), href=None if last is None else self._page(last),
                hint=f"baseline {figures.score(all_['baseline_S'])}",
            )),
            ("over the baseline", Cell(figures.ratio(all_["ratio"]), hint="the promotions' contests, multiplied")),
            ("iterations", Cell(str(all_["iterations"]), hint=tried or None)),
            ("accepted", Cell(str(all_["accepted"]), hint="beyond the baseline")),
            ("agent", Cell(usd, hint=f"{spend['tokens']:,} tokens in {len(spend['sessions'])} sessions",
                           href=self._path("spend.jsonl") if spend["sessions"] else None)),
            ("measuring", Cell(_duration(all_["seconds"]), hint="judge and contests")),
        ]  # fmt: skip

    def _iterations(self, data: Mapping[str, str]) -> TableView:
        headings = [
            Heading("attempt"), Heading("on", hint="the kernel it set out from"), Heading("session"),
            Heading("category", False, True, "what the plan says"),
            Heading("edit", False, hint="what the edit looks like, where that is another category"),
            Heading("outcome", False, True), Heading("predicted"), Heading("measured", hint="old time over new"),
            Heading("interval"), Heading("rounds"), Heading("S"), Heading("change", False), Heading("s", hint="spent"),
        ]  # fmt: skip
        rows = []
        for row in self.document["iterations"]:
            href, plan = self._page(row["number"]), row["plan"] or {}
            other = row["classified"] if row["classified"] not in (None, row["category"]) else ""
            rows.append([
                number(row["number"], str(row["number"]), href),
                number(row["incumbent"], str(row["incumbent"]), self._page(row["incumbent"] or 0))
                if row["incumbent"] is not None else Cell(figures.DASH),
                number(row["session"], str(row["session"])),
                Cell(_words(row["category"])), Cell(_words(other) if row["plan"] else ""),
                Cell(_words(row["outcome"]), kind=KINDS.get(row["outcome"]), hint=row["reason"]),
                number(row["predicted"], figures.ratio(row["predicted"]), self._of(row, "plan.json")),
                number(row["ratio"], _ratio(row["ratio"]), self._of(row, "contest.json", "heat.json")),
                Cell(_interval(row), row["low"]), number(row["rounds"], _whole(row["rounds"])),
                number(row["S_i"], figures.score(row["S_i"]), self._path(f"memory/{row['number']:04d}.json")),
                Cell(_cut(plan.get("change", ""), 160), hint=_cut(row["reason"] or "", 300) or None),
                number(row["seconds"], f"{row['seconds']:.0f}"),
            ])  # fmt: skip
        return TableView("iterations", "Attempts", headings, rows, data, empty="no kernel has been judged yet")

    def _masks(self, data: Mapping[str, str]) -> TableView:
        headings = [Heading("session"), Heading("after"), Heading("policy", False), Heading("seed", False),
                    Heading("hidden from the agent", False), Heading("when", False)]  # fmt: skip
        rows = [
            [number(m["session"], str(m["session"]), self._path("masks.jsonl")),
             number(m["after"], str(m["after"]), self._page(m["after"])), Cell(m["policy"]), Cell(m["seed"]),
             Cell(", ".join(map(str, m["hidden"])) or "nothing"), Cell(m["created"])]
            for m in self.document["masks"]
        ]  # fmt: skip
        note = "A restart begins a fresh session that does not see the hidden records; the campaign's files keep them."
        return TableView("masks", "Restarts and masks", headings, rows, data, [note] if rows else [],
                         "no restart so far")  # fmt: skip

    def _cards(self, data: Mapping[str, str]) -> TableView:
        headings = [Heading("card", False), Heading("title", False), Heading("plans on it"), Heading("accepted"),
                    Heading("opened"), Heading("attempts", False)]  # fmt: skip
        rows = [
            [self._card(c["id"]), Cell(c["title"] or ""), number(len(c["cited"]), str(len(c["cited"]))),
             number(len(c["accepted"]), str(len(c["accepted"]))), number(len(c["opened"]), str(len(c["opened"]))),
             Cell(", ".join(map(str, c["cited"] or c["opened"])))]
            for c in self.document["cards"]
        ]  # fmt: skip
        return TableView("cards", "Cards used", headings, rows, data, empty="no card was opened")

    def _shapes(self, data: Mapping[str, str]) -> TableView:
        roofline = self.document["roofline"]
        accepted = [row for row in self.document["iterations"] if row["accepted"]]
        first, last = (accepted[0], accepted[-1]) if accepted else ({}, {})
        headings = [Heading("shape", False), Heading("MFLOP"), Heading("MB moved"), Heading("FLOP/byte"),
                    Heading("bound", False), Heading("roofline us"), Heading("baseline us"), Heading("now us"),
                    Heading("S now")]  # fmt: skip
        rows = []
        for shape, bound in roofline["shapes"].items():
            times = [row.get("median_us", {}).get(shape) for row in (first, last)]
            rows.append([
                Cell(shape), number(bound["flops"], f"{bound['flops'] / 1e6:,.4g}"),
                number(bound["bytes_moved"], f"{bound['bytes_moved'] / 1e6:,.4g}"),
                number(bound["intensity"], figures.DASH if bound["intensity"] is None else f"{bound['intensity']:.3g}"),
                Cell(bound["bound"]), number(bound["roofline_us"], figures.us(bound["roofline_us"]),
                                             self._path("roofline.json")),
                *(number(us, figures.us(us)) for us in times),
                number(s := last.get("S", {}).get(shape), figures.score(s)),
            ])  # fmt: skip
        notes = ["W and Q were counted from the reference: estimates."] if roofline["estimated"] else []
        return TableView("shapes", "Shapes and their roofline", headings, rows, data, notes)

    def _ceilings(self, data: Mapping[str, str]) -> TableView:
        roofline = self.document["roofline"]
        page = f"chips/chip-{roofline['chip'].lower()}.html"
        href = page if roofline["chip"] in self.chips else None
        rows = [
            [Cell(name, kind="code"), number(value, f"{value:.4g}"), Cell(roofline["cards"][name], href=href)]
            for name, value in roofline["ceilings"].items()
        ]
        headings = [Heading("ceiling", False), Heading("FLOP/s, B/s"), Heading("from", False)]
        return TableView("ceilings", f"Ceilings of {roofline['chip']}", headings, rows, data)

    def _spend(self, data: Mapping[str, str]) -> TableView:
        headings = [Heading("session", False), Heading("tokens"), Heading("USD"), Heading("transcript", False)]
        rows = [
            [Cell(s["session"], kind="code"), number(s["tokens"], _whole(s["tokens"])),
             number(s["usd"], figures.DASH if s["usd"] is None else f"{s['usd']:.4f}"),
             Cell("read", href=self._transcript_page(s["transcript"])) if s["transcript"] else Cell(figures.DASH)]
            for s in self.document["spend"]["sessions"]
        ]  # fmt: skip
        return TableView("spend", "Sessions of the agent", headings, rows, data, empty="no session of an agent")

    # -- one attempt -----------------------------------------------------------------------------------------------

    def _attempt(self, row: dict[str, Any], before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        at, n = self._page(row["number"]), row["number"]
        records = {record: path for record in row["records"] if (path := self._record(record))}
        data = {"JSON": self._path(f"memory/{n:04d}.json")}
        plan = row["plan"] or {"cards": [], "figures": {}}
        words = "Baseline" if not n else f"Attempt {n}"
        contest = f"measurements/{n:04d}-contest.json"
        plot = contest_plot(json.loads(self._text(contest)), self._path(contest)) if contest in records else None
        diff = row["diff"]
        self.site.page(
            at, "attempt.html", title=words, crumbs=self.crumbs, plots=plot is not None, row=row,
            outcome=_words(row["outcome"]), kind=KINDS.get(row["outcome"]), ratio=_ratio, measured=_interval(row),
            words=_words, records=records,
            plan_cards=[self._card(card) for card in plan["cards"]],
            opened=[self._card(card) for card in (row["knowledge"] or {"cards": []})["cards"]],
            hardware=[(figure, self._card(card)) for figure, card in plan["figures"].items()],
            times=self._times(row, data), evidence=self._evidence(row), contest=plot,
            diff=None if diff is None else diff_lines(diff) if row["plan"] else None,
            source=self._text(f"iterations/{n:04d}/candidate.py"),
            source_data={"file": path} if (path := records.get(f"iterations/{n:04d}/candidate.py")) else {},
            page_of=self._page, before=before and before["number"], after=after and after["number"],
            transcripts=self._sessions(n), score=figures.score,
        )  # fmt: skip

    def _text(self, record: str) -> str:
        try:
            return (self.campaign.path / record).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def _times(self, row: dict[str, Any], data: Mapping[str, str]) -> TableView:
        by_number = {each["number"]: each for each in self.document["iterations"]}
        old = by_number.get(row["incumbent"], {}).get("median_us", {}) if row["incumbent"] is not None else {}
        bounds = self.document["roofline"]["shapes"]
        headings = [Heading("shape", False), Heading("roofline us"), Heading(f"kernel {row['incumbent']} us"),
                    Heading("this us"), Heading("S")]  # fmt: skip
        judged = self._path(f"measurements/{row['number']:04d}-judge.jsonl")
        rows = []
        for shape in bounds:
            us, s = row["median_us"].get(shape), row["S"].get(shape)
            rows.append([
                Cell(shape), number(bounds[shape]["roofline_us"], figures.us(bounds[shape]["roofline_us"])),
                number(old.get(shape), figures.us(old.get(shape))), number(us, figures.us(us), judged),
                number(s, figures.score(s), judged),
            ])  # fmt: skip
        if row["incumbent"] is None:
            headings = [h for i, h in enumerate(headings) if i != 2]
            rows = [[c for i, c in enumerate(cells) if i != 2] for cells in rows]
        note = "Single judgements; whether one kernel is faster than another is for the contest to say."
        return TableView("times", "Judged times", headings, rows, data, [note])

    def _evidence(self, row: dict[str, Any]) -> TableView | None:
        seen = row["evidence"]
        if seen is None:
            return None
        record = f"iterations/{row['iteration']:04d}/evidence.json"
        names = sorted({name for shape in seen["shapes"].values() for name in shape["figures"]})
        headings = [Heading("shape", False), Heading("median us"), Heading("of the roofline"), Heading("bound", False),
                    *(Heading(name) for name in names)]  # fmt: skip
        rows = [
            [Cell(shape, kind="code"), number(s["median_us"], figures.us(s["median_us"])),
             number(s["share"], figures.percent(s["share"])), Cell(s["bound"]),
             *(number(v := s["figures"].get(name), figures.DASH if v is None else f"{v:,.4g}") for name in names)]
            for shape, s in seen["shapes"].items()
        ]  # fmt: skip
        return TableView("evidence", "What was seen of the kernel", headings, rows, {"JSON": self._path(record)},
                         seen["notes"])  # fmt: skip

    def _sessions(self, attempt: int) -> list[tuple[str, str]]:
        mine = f"{attempt:04d}-"
        return [
            (s["session"], self._transcript_page(s["transcript"])) for s in self.document["spend"]["sessions"]
            if s["transcript"] and s["session"].startswith(mine)
        ]  # fmt: skip

    # -- transcripts -----------------------------------------------------------------------------------------------

    def _transcript_page(self, record: str) -> str:
        return f"{self.at}/transcript-{slug(Path(record).stem)}.html"

    def _transcript(self, record: str) -> None:
        events, fault = [], None
        try:
            for seconds, event in read(self.campaign.path / record):
                events.append(_event(seconds, event.model_dump(mode="json")))
        except UserError as error:  # a session that is under way may have half a line at its end
            fault = str(error)
        self.site.page(
            self._transcript_page(record), "transcript.html", title=f"Transcript {Path(record).stem}",
            crumbs=self.crumbs, events=events[:MOST_EVENTS], left=max(0, len(events) - MOST_EVENTS), fault=fault,
            data={"JSONL": self._record(record)},
        )  # fmt: skip


_COLUMNS = ("number", "iteration", "session", "created", "incumbent", "category", "classified", "outcome", "reason",
            "predicted", "ratio", "low", "high", "confidence", "rounds", "decision", "error", "S_i", "incumbent_S",
            "seconds", "candidate_sha256")  # fmt: skip


def diff_lines(diff: str) -> list[tuple[str, str]]:
    """(class, line) of a unified diff, cut where a page would get too long."""
    found, length = [], 0
    for line in diff.split("\n"):
        length += len(line)
        if length > 4 * LONGEST_TEXT:
            return [*found, ("hunk", "... the rest is in the files")]
        kind = "hunk" if line.startswith(("@@", "---", "+++")) else {"+": "add", "-": "del"}.get(line[:1], "")
        found.append((kind, line))
    return found


def _event(seconds: float, event: dict[str, Any]) -> dict[str, Any]:
    """An event as a transcript's page shows it: who or what, and the text."""
    kind = event.pop("kind")
    text = event.pop("text", None)
    who = event.pop("role", None) or event.pop("tool", None) or event.pop("stream", None) or ""
    event.pop("id", None)
    if text is None:
        text = ", ".join(event["names"]) if kind == "tools" else _pairs(event)
    return {"seconds": seconds, "kind": kind.replace("_", " "), "who": who, "text": _cut(text, LONGEST_TEXT),
            "failed": bool(event.get("failed"))}  # fmt: skip


def _pairs(event: dict[str, Any]) -> str:
    told = {key: value for key, value in event.items() if value is not None}
    long = {key: value for key, value in told.items() if isinstance(value, dict)}
    lines = [", ".join(f"{key} {value}" for key, value in told.items() if key not in long)]
    lines += [json.dumps(value, ensure_ascii=False, indent=1) for value in long.values()]
    return "\n".join(line for line in lines if line)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _ratio(value: float | None) -> str:
    return figures.DASH if value is None else f"{value:.3f}x"


def _interval(row: Mapping[str, Any]) -> str:
    if row["low"] is None and row["high"] is None:
        return figures.DASH
    low, high = (figures.DASH if end is None else f"{end:.3f}" for end in (row["low"], row["high"]))
    return f"{low} to {high}"


def _whole(value: int | None) -> str:
    return figures.DASH if value is None else f"{value:,}"


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )
