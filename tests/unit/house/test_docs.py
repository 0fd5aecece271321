"""The links of the documentation lead somewhere, and its code compiles. The tests in tests/docs run
the code."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import headrace
from headrace._protocol.script import script
from tests.support.facts import each

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FEATURES = ROOT / "tests" / "features.md"
OTHERS = [FEATURES, *sorted((ROOT / "bench").rglob("*.md"))]  # pages that are not of the docs
REPOSITORY = "https://github.com/headrace/headrace/blob/main/"  # as pyproject.toml has it
COMMANDS = """
python -m pip install '.[embedded,cli,web]' && headrace demo
python -m pip install -e '.[dev]' && python -m pytest
"""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PICTURE = re.compile(r'\bsrc(?:set)?="([^"]+)"')
_IMPORT = re.compile(r"^from headrace import (.+)$", re.MULTILINE)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code(page: Path) -> list[str]:
    return [text for lang, text in _FENCE.findall(page.read_text("utf-8")) if lang == "python"]


def anchors(page: Path) -> set[str]:
    """Return the anchors of *page*'s headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def script_of(name: str) -> ModuleType:
    """Import a script of docs/, which is in no package."""
    spec = spec_from_file_location(f"headrace_docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def protocol() -> ModuleType:
    return script_of("protocol")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return script_of("reference")


def test_the_pages_of_the_reference_are_fresh(reference: ModuleType) -> None:
    stale = [
        path
        for path, text in reference.pages().items()
        if (reference.FOLDER / path).read_text("utf-8") != text
    ]
    assert stale == [], "run python docs/reference.py"


def test_no_page_says_that_a_script_wrote_it_unless_that_is_so(reference: ModuleType) -> None:
    """The counts of .ci/house.py leave such pages and tables out."""
    says = {
        page.relative_to(DOCS / "reference")
        for page in DOCS.rglob("*.md")
        if "by docs/" in page.read_text("utf-8")
    }
    assert {str(path) for path in says} == {*reference.pages(), "redis-protocol.md"}


def test_a_stale_page_of_the_reference_fails_the_check(
    reference: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["reference.py", "--check"])
    assert reference.main() == 0
    page = tmp_path / "reference" / "settings.md"
    shutil.copytree(reference.FOLDER, page.parent)
    text = page.read_text("utf-8")
    page.write_text(text.replace("| `lease` | 60 s", "| `lease` | 61 s"), "utf-8")
    monkeypatch.setattr(reference, "FOLDER", page.parent)
    assert reference.main() == 1
    monkeypatch.setattr(sys, "argv", ["reference.py"])
    assert reference.main() == 0
    assert page.read_text("utf-8") == text


def test_the_protocol_page_is_fresh(protocol: ModuleType) -> None:
    stale = "run python docs/protocol.py"
    assert protocol.PAGE.read_text("utf-8") == protocol.page(), stale


def test_a_stale_protocol_page_fails_the_check(
    protocol: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["protocol.py", "--check"])
    assert protocol.main() == 0
    monkeypatch.setattr(protocol, "PAGE", tmp_path / "page.md")
    assert protocol.main() == 1
    (tmp_path / "page.md").write_text("old")
    assert protocol.main() == 1


def test_every_key_is_described_and_no_other(protocol: ModuleType) -> None:
    # by their ids
    used = {part for name in protocol.names() for part in script(name).key_names} - {
        "result",
        "flow",
    }
    assert set(protocol.PARTS) == used | {
        "lane:<lane>",
        "result:<id>",
        "flow:<id>",
        "jobs:<level>",
        "reports:<prefix>",
    }


def test_the_headers_name_keys_by_their_types(protocol: ModuleType) -> None:
    types = {part.partition(":")[0]: kind for part, (kind, _) in protocol.PARTS.items()}
    for name in protocol.names():
        assert all(
            key == f"{key.partition(' ')[0]} ({types[key.partition(' ')[0]]})"
            for key in script(name).keys
            if "..." not in key
        ), name


def test_every_proof_of_a_capability_is_a_test() -> None:
    page = FEATURES.read_text("utf-8")
    rows = [
        line
        for line in page.splitlines()
        if line.startswith("| ") and not line.startswith("| capability")
    ]
    proofs = re.findall(r"`(\w+/test_\w+\.py)::(test_\w+)` \|$", page, re.MULTILINE)
    assert len(proofs) >= len(rows) - 1 > 90  # one is for examples, not for a queue
    for file, test in proofs:
        found = re.findall(
            r"^def (test_\w+)\(", (ROOT / "tests" / file).read_text("utf-8"), re.MULTILINE
        )
        assert test in found, f"{file}::{test}"


def test_every_field_that_is_ours_is_described(protocol: ModuleType) -> None:
    own = {
        "data",
        "id",
        "attempt",
        "enq",
        "headrace-cost",
        "headrace-flow",
        "headrace-from",
        "headrace-key",
        "headrace-nonce",
    }
    own |= {
        "headrace-priority",
        "headrace-attempts",
        "headrace-children",
        "headrace-reason",
        "headrace-traceback",
        "headrace-unique",
    }
    assert set(protocol.FIELDS) == {*own, "any other"}


def test_the_readme_starts_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    title, sentence, rest = text.split("\n\n", 2)
    assert title == "# headrace"
    assert sentence.count(".") == 1
    assert rest.startswith(f"```sh{COMMANDS}```\n")


def test_the_readme_s_links_are_absolute() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert all(link.startswith(REPOSITORY) for link in _LINK.findall(_FENCE.sub("", text)))
    assert f'Documentation = "{REPOSITORY}docs/index.md"' in (ROOT / "pyproject.toml").read_text(
        "utf-8"
    )


@each("page", [*PAGES, *OTHERS], ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text("utf-8"))
    for link in _LINK.findall(text) + _PICTURE.findall(text):
        ours = link.startswith(REPOSITORY)
        if "://" in link and not ours:
            continue
        path, _, anchor = link.removeprefix(REPOSITORY).partition("#")
        target = ((ROOT if ours else page.parent) / path).resolve() if path else page
        assert target.is_file(), f"{link} leads nowhere"
        if target.suffix == ".png" and anchor in {"gh-light-mode-only", "gh-dark-mode-only"}:
            continue
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


@each("page", [*PAGES, *OTHERS], ids=name)
def test_there_is_one_way_to_install(page: Path) -> None:
    # of an image, whose only Python it is
    text = page.read_text("utf-8").replace("RUN pip install", "")
    assert not re.search(r"(?<!python -m )\bpip install", text)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """Once, by its purpose."""
    nav = (
        (ROOT / ".mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2].partition("\ntheme:")[0]
    )
    pages = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)
    wanted = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert sorted(pages) == sorted(wanted)


def test_all_pages_are_listed_by_their_titles() -> None:
    listed = DOCS / "reference" / "pages.md"
    links = _LINK.findall(listed.read_text("utf-8"))
    linked = [(listed.parent / link).resolve() for link in links]
    assert sorted(linked) == sorted({*DOCS.rglob("*.md")} - {DOCS / "index.md"})
    front = (DOCS / "index.md").read_text("utf-8")
    assert "(reference/pages.md)" in front
    assert len(_LINK.findall(front)) == 5  # three, and the picture in light and in dark


def test_the_site_has_the_icon_of_the_pages() -> None:
    ours = ROOT / "src" / "headrace" / "console" / "web" / "static" / "icon.svg"
    assert (DOCS / "pictures" / "icon.svg").read_bytes() == ours.read_bytes()


@each("page", [p for p in PAGES if code(p)], ids=name)
def test_code_compiles_and_imports_what_there_is(page: Path) -> None:
    for number, block in enumerate(code(page), 1):
        compile(block, f"{name(page)}, block {number}", "exec", dont_inherit=True)
        for names in _IMPORT.findall(block):
            missing = {n.strip() for n in names.split(",")} - set(headrace.__all__)
            assert not missing, f"{name(page)}: headrace has no {missing}"
