"""`atrex wiki add-source`, `sources` and `search --source`: upstream projects, indexed on this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def add_source(
    where: Annotated[str, typer.Argument(metavar="PATH|GIT_URL|NAME", help="NAME as `atrex wiki sources` lists it.")],
    name: Annotated[
        str | None, typer.Option(help="What to call it; default: the folder's or repository's name.")
    ] = None,
    ref: Annotated[str | None, typer.Option(help="Branch or tag to clone; default: the project's own.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for the clone.")] = 900.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Index a project's kernels and symbols for `search --source NAME`; commit and licence are kept with it."""
    from rich.console import Console
    from rich.progress import Progress

    from atrex.wiki.sources import store
    from atrex.wiki.sources.tree import find_tree, upstreams

    print(f"reading {where}", file=sys.stderr)
    tree = find_tree(where, name, ref, timeout)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("indexing")
        about = store.add(tree, lambda done, total: progress.update(task, completed=done, total=total))
    expected = upstreams().get(about["name"], {}).get("licence")
    if as_json:
        print(json.dumps(about, indent=2))
        return
    kernels = ", ".join(f"{n} {dsl}" for dsl, n in about["kernels"].items()) or "no kernels"
    print(f"{about['name']}: {about['files']} files, {about['symbols']} symbols, {kernels}")
    commit = f"commit {about['commit']}{' with changes' if about['dirty'] else ''}" if about["commit"] else "no commit"
    print(f"{commit}, licence {about['licence']} ({about['licence_file'] or 'no licence file'})")
    if expected and expected != about["licence"]:
        print(f"the list of recommended projects says {expected}: read the licence before you use anything")


def sources(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """The projects that were added, and those that are recommended with their licences."""
    from atrex.wiki.sources import store
    from atrex.wiki.sources.tree import upstreams

    added = store.known()
    if as_json:
        recommended = {name: dict(about) | {"date": about["date"].isoformat()} for name, about in upstreams().items()}
        print(json.dumps({"added": added, "recommended": recommended}, indent=2))
        return
    for about in added:
        kernels = ", ".join(f"{n} {dsl}" for dsl, n in about["kernels"].items())
        print(
            f"{about['name']}: {kernels or 'no kernels'}; {about['licence']}, {(about['commit'] or 'no commit')[:12]}"
        )
    names = {about["name"] for about in added}
    for name, about in upstreams().items():
        if name not in names:
            print(f"{name} (recommended): {about['what']}; {about['licence']}, {about['url']}")


def search_source(name: str, question: str, k: int, dsl: str | None, as_json: bool) -> None:
    """Print the symbols of an added project that answer. Exit status 1 when none does."""
    from dataclasses import asdict

    from atrex.wiki.sources import store

    about, places = store.search(name, question, k, dsl)
    if as_json:
        print(json.dumps({"source": about, "places": [asdict(place) for place in places]}, indent=2))
    else:
        root = Path(about["root"])
        for place in places:
            doc = f"\n    {' '.join(place.doc.split())[:160]}" if place.doc else ""
            at = place.url or f"{root / place.path}:{place.start}-{place.end}"
            print(f"{place.name}  ({' '.join(filter(None, [place.dsl, place.kind]))})\n    {at}{doc}")
        if places:
            print(f"{about['name']} is under {about['licence']}; nothing of it is part of this project")
        else:
            print(f"nothing in {name} says that")
    if not places:
        raise typer.Exit(1)
