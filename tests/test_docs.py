"""``docs/`` builds without a warning, and its pages about the program tell of all of it."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

import fencegate.client
import fencegate.client.sync
from fencegate.config import parse
from fencegate.config.settings import SOURCES
from fencegate.errors import PROBLEMS
from fencegate.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WRITTEN = sorted(path for path in DOCS.rglob("*.md") if DOCS / "generated" not in path.parents)
MINIMAL = {
    "node": 'node = "gw-1"\n',
    "region": 'region = "eu"\n',
    "advertise": 'advertise = "https://ledger.eu.example"\n',
    "[store]": '[store]\ndsn = "postgresql://fencegate@localhost/ledger"\n',
    "[[route]]": '[[route]]\npath = "/v1/entries"\nrole = "ledger"\ntarget = "ledger"\n',
}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", DOCS / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. A link to nowhere, a page outside the tree or a section that was renamed fails it."""
    built = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", str(DOCS), str(built)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return built


@pytest.mark.timeout(300)
def test_the_pages_build_without_a_warning(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in WRITTEN}
    assert not [str(page) for page in pages if not (site / page).is_file()]


@pytest.mark.timeout(300)
def test_the_sdk_page_tells_of_every_name_of_the_sdk(site: Path) -> None:
    page = (site / "sdk.html").read_text()
    assert not [
        name for name in fencegate.client.__all__ if not re.search(rf'id="fencegate\.client\.\S*\b{name}"', page)
    ]
    assert "_pin" not in page


def test_every_problem_code_has_a_page_that_says_when_it_is_met_and_what_to_do(reference: ModuleType) -> None:
    assert list(reference.NOTES) == list(PROBLEMS)
    pages = reference.pages()
    for code, problem in PROBLEMS.items():
        page = pages[f"problems/{code}.md"]
        assert problem.title in page
        assert f"`{problem.retry}`" in page
        assert f"`{problem.applied}`" in page
        assert all(reference.NOTES[code][what].endswith(".") for what in ("when", "do"))
        assert f"problems/{code}.md" in pages["problems.md"]


def test_the_readmes_table_has_every_code_of_the_gateway() -> None:
    _, _, after = (ROOT / "README.md").read_text().partition("| status | codes |")
    table, _, after = after.partition("\n\n")
    codes = set(re.findall(r"`(\w+)`", table))
    assert codes == {code for code in PROBLEMS if not code.startswith("proof_")}, "those are the middleware's"
    assert all(f"`{code}`" in after for code in set(PROBLEMS) - codes)


def keys(document: dict[str, Any], above: str = "") -> set[tuple[str, str]]:
    """Every key of a configuration with the table that it is in."""
    found = set()
    for key, value in document.items():
        inner = value[0] if isinstance(value, list) and value and isinstance(value[0], dict) else value
        if isinstance(inner, dict):
            found |= keys(inner, f"{above}.{key}" if above else key)
        else:
            found.add((above, key))
    return found


def test_every_key_of_the_configuration_is_told_of_with_what_is_expected(reference: ModuleType) -> None:
    settings = parse(file=("minimal.toml", "".join(MINIMAL.values())))
    told, table = {}, ""
    for line in reference.settings_page().splitlines():
        if line.startswith("## "):
            table = line.strip("# `[]").replace("At the top", "")
        elif row := re.match(r"\| `(\w+)`[^|]*\| (.*?) \| ", line):
            told[table, row[1]] = row[2]
    # Several stores are tables [[store]], and told of with [store].
    assert set(told) == keys(settings.document()) - {("", "stores")}
    assert not [key for key, expected in told.items() if not expected]


def test_every_metric_of_a_gateway_is_told_of(reference: ModuleType) -> None:
    page = Metrics(["ledger"], node="gw-1", region="eu", backend="etcd", version="0").render()[1].decode()
    names = set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
    told = set(re.findall(r"^\| `(\w+)`", reference.metrics_page(), re.MULTILINE))
    assert names < told
    readme = (ROOT / "README.md").read_text()
    promised = set(re.findall(r"`(fencing_\w+?)(?:\{[^`]*\})?`", readme.partition("## Watching it")[2]))
    assert promised == {name for name in told if name.startswith("fencing_")}


def test_the_direction_of_imports_is_told_as_it_is_held() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    held = project["tool"]["importlinter"]["contracts"][0]["layers"]
    told = re.search(r"^`(cli > [^`]*)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert told is not None
    assert [layer.strip(" ()") for layer in told[1].replace("\n", " ").split(">")] == held


def test_every_election_has_a_page() -> None:
    assert {path.stem for path in DOCS.glob("elections/*.md")} - {"index", "numbers", "following"} == set(SOURCES)


def test_a_source_distribution_has_what_the_pages_link_to_and_what_make_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packed = {name.lstrip("/") for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    assert {"Makefile", "requirements.lock"} <= packed
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *WRITTEN):
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", page.read_text()):
            target = (page.parent / link).resolve()
            if ":" not in link and DOCS / "generated" not in target.parents:
                assert target.exists(), (page, link)
                assert target.relative_to(ROOT).parts[0] in packed, (page, link)


def snippets() -> list[str]:
    """The SDK's examples, of the README and of the docstrings that docs/sdk.md is made of."""
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    for module in (fencegate.client, fencegate.client.sync):
        indented = re.findall(r"(?:^    .*\n|^\n)+", module.__doc__ or "", re.MULTILINE)
        found.append("from __future__ import annotations\n" + "".join(textwrap.dedent(block) for block in indented))
    return found


@pytest.mark.parametrize("text", snippets())
def test_an_example_of_the_sdk_says_where_every_name_comes_from(text: str) -> None:
    tree = compile(text, "example", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    bound, used = set(dir(builtins)) | {"runs", "park"}, set()  # what the reader has
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
            bound |= {name.name for name in node.names}
        elif isinstance(node, ast.Name):
            (bound if isinstance(node.ctx, ast.Store) else used).add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
    assert used <= bound | set(fencegate.client.__all__), used - bound


def configurations() -> list[tuple[str, str]]:
    found = []
    for path in (*WRITTEN, ROOT / "README.md"):
        for indent, block in re.findall(r"^([ ]*)```toml\n(.*?)^ *```", path.read_text(), re.MULTILINE | re.DOTALL):
            text = re.sub(rf"^{indent}", "", block, flags=re.MULTILINE)
            if re.search(r"^\[\[?(election|route|store)", text, re.MULTILINE):
                found.append((str(path.relative_to(ROOT)), text))
    return found


@pytest.mark.parametrize(("page", "text"), configurations())
def test_every_configuration_in_the_pages_is_one_that_is_taken(page: str, text: str) -> None:
    top = "".join(line for key, line in MINIMAL.items() if "[" not in key and not re.search(rf"^{key} =", text, re.M))
    tables = "".join(lines for key, lines in MINIMAL.items() if "[" in key and key not in text)
    parse(file=(page, f"{top}{text}\n{tables}"))


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_every_picture_says_in_words_what_it_shows_and_has_its_own_ground_in_light_and_dark(picture: Path) -> None:
    space = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(picture.read_text())
    assert root.get("role") == "img"
    assert all((root.findtext(f"{space}{what}") or "").strip() for what in ("title", "desc"))
    assert "prefers-color-scheme: dark" in (root.findtext(f"{space}style") or "")
    first = root.find(f"{space}rect")
    assert first is not None
    assert (first.get("class"), f"0 0 {first.get('width')} {first.get('height')}") == ("page", root.get("viewBox"))


def test_every_picture_in_a_page_has_a_text_alternative() -> None:
    for path in WRITTEN:
        assert "![](" not in path.read_text(), path
