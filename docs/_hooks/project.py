"""MkDocs hook: the site holds all that its pages link to.

README, changelog and the pages beside them become pages of the site, and files of the project that a page links to
(records, data, sources) are copied into it under `project/`; a folder becomes a list of its files. So the site needs
no network and no address of a repository, and in the repository the same links lead to the files themselves.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(\]\(|src=\"|href=\")(?!\w+:|#|/)([^)\s\"#]+)")
FENCED = re.compile(r"^(```.*?^```)\s*$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and files that are not in docs/."""
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for page in list(files.documentation_pages()):
        for target in _links(page.content_string, _base(page.src_uri)):
            _add(target, files, config)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links out of docs/ to the copies in the site."""
    folder = posixpath.dirname(page.file.src_uri)
    base = _base(page.file.src_uri)

    def lead(match: re.Match[str]) -> str:
        target = _resolve(match[2], base)
        if target is None:
            return match[0]
        uri = _site_uri(target) + ("/index.md" if (ROOT / target).is_dir() else "")
        return match[1] + posixpath.relpath(uri, folder or ".")

    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(lead, part) for part in parts)


def _base(uri: str) -> str:
    """The folder of a page's source, from the root of the project. Lists of files stand where their folder does."""
    origin = {page: source for source, page in ROOT_PAGES.items()}.get(uri, f"docs/{uri}")
    return posixpath.dirname(origin.removeprefix("docs/project/") if uri.startswith("project/") else origin)


def _links(text: str, base: str) -> set[str]:
    targets = (_resolve(match[2], base) for match in LINK.finditer(FENCED.sub("", text)))
    return {target for target in targets if target is not None}


def _resolve(link: str, base: str) -> str | None:
    """A link from the folder `base` as a path from the root; None where nothing is there, for MkDocs to complain."""
    target = posixpath.normpath(posixpath.join(base, link))
    return target if not target.startswith("..") and (ROOT / target).exists() else None


def _site_uri(target: str) -> str:
    """Where a path of the project stands in the site's sources."""
    if target in ROOT_PAGES:
        return ROOT_PAGES[target]
    return target.removeprefix("docs/") if target.startswith("docs/") else f"project/{target}"


def _add(target: str, files: Files, config: Any) -> None:
    path, uri = ROOT / target, _site_uri(target)
    if path.is_file():
        if uri not in files.src_uris:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
        return
    if f"{uri}/index.md" in files.src_uris:
        return
    names = sorted(child.name for child in path.iterdir() if child.name != "__pycache__" and child.suffix != ".pyc")
    listing = "".join(f"- [{name}]({name})\n" for name in names)
    files.append(File.generated(config, f"{uri}/index.md", content=f"# {target}\n\n{listing}"))
    for name in names:
        _add(f"{target}/{name}", files, config)
