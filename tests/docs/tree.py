"""The tree in docs/development.md: `python -m tests.docs.tree` prints it, `--write` draws it there."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.repository import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "development.md"
ROOTS = ("webhook", "certs", "sandbox", "tests")

_DRAWN = re.compile(r"(?<=```text\n)webhook/ .*?(?=```)", re.DOTALL)


def first_sentence(module: Path) -> str:
    """The first line of the module's docstring; empty without one."""
    return (ast.get_docstring(ast.parse(module.read_text())) or "").split("\n", 1)[0]


def of_folder(folder: Path) -> str:
    """What a package says of itself, or what the folder of tests mirrors."""
    for name in ("__init__.py", "__main__.py"):
        if (folder / name).exists() and (told := first_sentence(folder / name)):
            return told
    mirrored = (REPOSITORY / "webhook" / folder.name, REPOSITORY / folder.name)
    found = [one.relative_to(REPOSITORY) for one in mirrored if one.is_dir() and one != folder]
    return f"The tests of {found[0]}." if found else ""


def drawn(folder: Path, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Each line as a name and what it says. Of the tests only the folders, and what is shared by them."""
    yield f"{'  ' * depth}{folder.name}/", of_folder(folder)
    own_folders = folder.name != "tests" and folder.parent.name == "tests"
    for entry in sorted(folder.iterdir(), key=lambda one: (one.is_dir(), one.name)):
        if entry.is_dir() and (entry / "__init__.py").exists():
            yield from drawn(entry, depth + 1)
        elif entry.suffix == ".py" and not (own_folders or entry.name.startswith(("__", "test_"))):
            yield f"{'  ' * (depth + 1)}{entry.name}", first_sentence(entry)


def tree() -> str:
    """The whole of it, one line for each folder and module."""
    lines = [line for root in ROOTS for line in drawn(REPOSITORY / root)]
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name:{width}}  {told}".rstrip() + "\n" for name, told in lines)


def in_the_document() -> str:
    """The tree as docs/development.md has it; empty where there is none."""
    found = _DRAWN.search(DOCUMENT.read_text())
    return found.group() if found else ""


def main() -> None:
    """Print the tree, or write it into the document."""
    options = argparse.ArgumentParser(prog="python -m tests.docs.tree", description=__doc__)
    options.add_argument("--write", action="store_true", help="write it into docs/development.md")
    if options.parse_args().write:
        DOCUMENT.write_text(_DRAWN.sub(lambda _: tree(), DOCUMENT.read_text(), count=1))
    else:
        print(tree(), end="")  # noqa: T201


if __name__ == "__main__":
    main()
