"""README.md and docs/: what points somewhere points at something, and the index has every document."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import tree
from tests.repository import REPOSITORY

README = REPOSITORY / "README.md"
INDEX = REPOSITORY / "docs" / "README.md"
DOCUMENTS = [README, *sorted((REPOSITORY / "docs").glob("*.md"))]

of_each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda one: one.name)


def prose(document: Path) -> str:
    """Without what is shown of a terminal or a file."""
    return re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


def links(document: Path) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(document))


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    return {
        re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    }


@of_each_document
def test_every_link_leads_to_a_file_and_a_section_that_are_there(document: Path) -> None:
    broken = []
    for link in links(document):
        if link.startswith(("https://", "http://")):
            continue
        path, _, section = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (section and section not in anchors(target)):
            broken.append(link)
    assert broken == []


@of_each_document
def test_every_file_of_the_project_that_is_named_is_there(document: Path) -> None:
    """Named as from the top of the project, in backticks."""
    named = re.findall(r"`((?:webhook|certs|sandbox|tests|manifests|docs|\.ci)/[\w./-]+)`", prose(document))
    missing = [name for name in named if not (REPOSITORY / name).exists()]
    assert missing == []


def test_the_index_has_every_document_once_and_in_its_own_words() -> None:
    rows = re.findall(r"^\| \[[^]]*\]\(([^)]*)\) \| (.*?[?])", INDEX.read_text(), re.MULTILINE)
    others = [one for one in DOCUMENTS if one not in (README, INDEX)]
    assert sorted(file for file, _ in rows) == [one.name for one in others]
    for file, question in rows:
        assert question == (INDEX.parent / file).read_text().split("\n", 1)[0].removeprefix("# ")


def test_the_readme_can_be_read_in_ten_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 200


def test_the_readme_leads_to_the_index() -> None:
    assert "docs/README.md" in links(README)


def test_the_tree_is_that_of_the_code() -> None:
    drawn = tree.tree()
    assert "  questions/" in drawn
    assert tree.in_the_document() == drawn, (
        "docs/development.md draws another tree than the code has: "
        "`.venv/bin/python -m tests.docs.tree --write` draws it anew"
    )


def test_every_module_says_in_its_first_line_what_it_is_for() -> None:
    silent = [line for line in tree.tree().splitlines() if len(line.split()) == 1 and line != "tests/"]
    assert silent == []


def test_the_map_has_every_folder_of_the_product() -> None:
    packages = [one for one in (REPOSITORY / "webhook").iterdir() if (one / "__init__.py").exists()]
    assert packages
    for folder in (*packages, *(REPOSITORY / root for root in tree.ROOTS if root != "webhook")):
        row = f"| `{folder.relative_to(REPOSITORY)}` |"
        assert row in tree.DOCUMENT.read_text()
