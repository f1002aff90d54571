"""The documentation as a whole: its links and anchors, its lists, its navigation.

`make docs` builds the site with every warning an error; what can be held without its environment is held here.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import reference
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS]
PAGES += [ROOT / folder / "README.md" for folder in reference.PACKAGES.values()]
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]*))?\)")
ITEM = re.compile(r" *([-*]|\d+\.) ")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def lines(page: Path) -> list[str]:
    """What is no code; a fenced block leaves one empty line."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return text.splitlines()


def anchors(page: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    titles = [line.lstrip("#").strip().lower() for line in lines(page) if re.match("#+ ", line)]
    shown = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in shown}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    wrong = []
    for target, anchor in (found.groups() for line in lines(page) for found in LINK.finditer(line)):
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(f"{target}#{anchor}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_list_begins_after_an_empty_line(page: Path) -> None:
    """Where it does not, GitHub shows a list and the site shows a run of text."""
    glued = []
    for above, below in itertools.pairwise(lines(page)):
        # An indented line above is the rest of an item.
        if ITEM.match(below) and not ITEM.match(above) and above[:1] not in ("", " "):
            glued.append(below)
    assert glued == []


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions, as plain values."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
CONFIG: Any = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def leaves(nav: Any) -> Iterator[str]:
    for each in nav:
        for value in each.values():
            yield from [value] if isinstance(value, str) else leaves(value)


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(leaves(CONFIG["nav"])) == sorted([page.name for page in DOCS] + ["index.md", "changelog.md"])


def test_a_warning_of_the_site_is_an_error_and_every_package_is_on_it() -> None:
    assert CONFIG["strict"] is True
    assert {each for kind in CONFIG["validation"].values() for each in kind.values()} == {"warn"}
    (python,) = (each["mkdocstrings"]["handlers"]["python"] for each in CONFIG["plugins"] if "mkdocstrings" in each)
    assert sorted(python["paths"]) == sorted({".", *reference.PACKAGES.values()})
    assert python["options"]["allow_inspection"] is False, "the reference is made of the source, with nothing imported"


def test_every_page_is_named_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS if f"](docs/{page.name})" not in readme] == []
