"""README and docs agree with the code."""

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_message_list_is_generated() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_messages.py"))["page"]()
    assert (ROOT / "docs" / "messages.md").read_text() == page, "run docs/make_messages.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]*)`", page.read_text()))
    missing = {
        name
        for name in named
        if not ((ROOT / name).exists() or (ROOT / "actorllm" / name).exists()) and not name.startswith("/v1")
    }
    assert not missing


def test_the_readme_names_every_package() -> None:
    readme = (ROOT / "README.md").read_text()
    packages = {path.parent.name for path in (ROOT / "actorllm").glob("*/__init__.py")}
    assert {name for name in packages if f"  {name}/" not in readme} == set()


def test_the_readme_program_compiles() -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert program is not None
    ast.parse(program.group(1))
