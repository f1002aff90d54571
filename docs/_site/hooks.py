"""What makes a site of pages that were written for reading in the repository, by mkdocs' hooks.

The pages are those of docs/, the README as the front page, each package's README, the changelog, and the reference,
which mkdocstrings makes of docstrings without importing anything.  Links of a page lead to files of the repository; on
the site they lead to the page of that file, or to a copy of it under `source/`.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
from reference import CORE, PACKAGES, ROOT, exports, pages

PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
PAGES |= {f"{folder}/README.md": f"packages/{name}.md" for name, folder in PACKAGES.items()}
"""Files outside of docs/ that are pages of the site."""
FENCE = re.compile(r"^(`{3,}|~{3,})")
LINK = re.compile(r"(?<!!)\[([^\]\n]*)\]\((?![a-z]+:|#)([^)#\s]*)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Adds what is generated to the end of the navigation."""
    core = [{title: f"reference/{page}"} for page, title, _ in pages() if title in CORE]
    brought = [{title: f"reference/{page}"} for page, title, _ in pages() if title in PACKAGES]
    config.nav.append({"Packages": [{name.replace("_", "-"): f"packages/{name}.md"} for name in PACKAGES]})
    config.nav.append({"Reference": [{"kvhub": core}, {"Plugins, adapters, kernels": brought}]})
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds pages from outside of docs/, the reference, and copies of what the pages link to."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for page, title, paths in pages():
        text = f"# {title}\n\n" + "".join(_reference(paths))
        files.append(File.generated(config, f"reference/{page}", content=text))
    linked = {
        target
        for file in files.documentation_pages()
        if (source := _source(file.src_uri)) is not None
        for target in _targets(file.content_string, source)
    }
    for target in sorted(linked):
        _copy(target, files, config)
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turns links between files of the repository into links between pages of the site."""
    source = _source(page.file.src_uri)
    if source is None:
        return markdown
    here = posixpath.dirname(page.file.src_uri)

    def moved(found: re.Match[str]) -> str:
        text, target, anchor = found[1], found[2], found[3] or ""
        place = _place(_resolved(target, source))
        return f"[{text}]({posixpath.relpath(place, here or '.')}{anchor})"

    return "".join(line if code else LINK.sub(moved, line) for line, code in _lines(markdown))


def _source(page: str) -> str | None:
    """The file of the repository that a page of the site is made of; None for one that is generated."""
    outside = {place: source for source, place in PAGES.items()}
    if page.startswith(("reference/", "source/")):
        return None
    return outside.get(page, f"docs/{page}")


def _resolved(target: str, source: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if not (ROOT / path).exists():
        raise SystemExit(f"{source}: links to {target}, and there is no {path}")
    return path


def _place(path: str) -> str:
    """Where on the site a file or folder of the repository is."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/") and path.endswith(".md"):
        return path.removeprefix("docs/")
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}"


def _targets(markdown: str, source: str) -> Iterator[str]:
    for line, code in _lines(markdown):
        if not code:
            yield from (_resolved(found[2], source) for found in LINK.finditer(line))


def _lines(markdown: str) -> Iterator[tuple[str, bool]]:
    """(line, whether it belongs to a fenced block)."""
    fence = ""
    for line in markdown.splitlines(keepends=True):
        found = FENCE.match(line)
        if found and not fence:
            fence = found[1]
            yield line, True
        else:
            yield line, bool(fence)
            if found and line.strip() == fence:
                fence = ""


def _copy(path: str, files: Files, config: Any) -> None:
    place = _place(path)
    if not place.startswith("source/") or files.get_file_from_path(place) is not None:
        return
    if (ROOT / path).is_dir():
        names = sorted(each.name for each in (ROOT / path).iterdir() if each.is_file())
        listing = "".join(f"- [{name}]({name})\n" for name in names)
        text = f"---\nsearch: {{exclude: true}}\n---\n\n# `{path}/`\n\n{listing}"
        files.append(File.generated(config, place, content=text))
        for name in names:
            _copy(f"{path}/{name}", files, config)
    else:
        files.append(File.generated(config, place, content=(ROOT / path).read_bytes()))


def _reference(paths: list[str]) -> Iterator[str]:
    """What mkdocstrings is asked for: a module with all it defines, a package's exports where they are defined."""
    for path in paths:
        quiet = "" if path.startswith("kvhub.") or path == "kvhub" else "show_if_no_docstring: false, "
        exported = exports(path)
        if exported is None:
            yield _asked(path, quiet)
            continue
        yield _asked(path, "members: false")
        others = {*paths} - {path}
        elsewhere = [each for each in exported if each in others or each.rpartition(".")[0] in others]
        if elsewhere:
            names = ", ".join(f"[`{each.rpartition('.')[2]}`][{each}]" for each in elsewhere)
            yield f"Further down on this page: {names}.\n\n"
        for each in exported:
            if each not in elsewhere:
                yield _asked(each, quiet + ("inherited_members: true" if each.endswith("Config") else ""))


def _asked(path: str, options: str) -> str:
    return f"::: {path}\n    options: {{{options}}}\n\n"
