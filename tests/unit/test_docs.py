"""The docs say what the code has: a command, setting, event type or dependency without its line fails here."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from salience.context.inputs import BUILDER_VERSION
from salience.log.decode import DECODER_VERSION
from salience.model.event import PAYLOADS, Causality, Event
from salience.model.session import (
    ContextConfig,
    Limits,
    ModelSettings,
    PermissionConfig,
    SessionConfig,
    TerminalReason,
)
from salience.model.tool import FailureKind
from salience.providers.script import parse
from salience.settings import Settings
from salience.telemetry.failpoints import NAMES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.glob("*.md")])
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_RULE = re.compile(r"\b(?:ONT|EVT|PRJ|CTX|CMP|INV|LOOP|BRN|MEM|RET|SUB|POL|TRC|PPL)-\d+[a-z]?\b")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def sources() -> list[Path]:
    folders = [ROOT / "salience", ROOT / "workflows", ROOT / "activities"]
    return [ROOT / "pyproject.toml", *(p for f in folders for e in ("*.py", "*.sql") for p in f.rglob(e))]


def section(text: str, heading: str) -> str:
    """From a heading, whose title must be exactly this, to the next one of its level or above; empty without one."""
    found = re.search(rf"^(#+) {re.escape(heading)}$(.*?)(?=^#{{1,6}} |\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(2) if found else ""


def snippets(language: str) -> list[Any]:
    return [
        pytest.param(info, body, id=f"{path.name}-{number}")
        for path in PAGES
        for number, (info, body) in enumerate(_FENCE.findall(path.read_text(encoding="utf-8")))
        if info.split()[:1] == [language]
    ]


def commands() -> dict[str, Any]:
    typer_main = pytest.importorskip("typer.main")
    from salience.cli import app

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        command = getattr(command, "real", command)  # one that is loaded when it is called
        inner = getattr(command, "commands", None)
        if inner is None:
            yield name, command
        else:
            for word, sub in inner.items():
                yield from walk(sub, f"{name} {word}")

    return {name: command for name, command in walk(typer_main.get_command(app), "salience") if not command.hidden}


def test_every_command_has_a_section_with_all_its_options() -> None:
    text = page("cli.md")
    missing: list[str] = []
    for name, command in commands().items():
        said = section(text, f"`{name}`")
        if not said:
            missing.append(name)
        for parameter in command.params:
            words = [word for word in (*parameter.opts, *parameter.secondary_opts) if word.startswith("--")]
            missing += [f"{name} {word}" for word in words if word not in ("--help",) and f"`{word}" not in said]
    assert not missing


def test_no_section_of_a_command_that_does_not_exist() -> None:
    documented = re.findall(r"^#+ `(salience [^`]+)`$", page("cli.md"), re.MULTILINE)
    assert sorted(documented) == sorted(commands())


@pytest.mark.parametrize("name", Settings.model_fields)
def test_setting_is_documented(name: str) -> None:
    text = section(page("configuration.md"), "Settings")
    assert f"`SALIENCE_{name.upper()}`" in text
    assert f"`{name}`" in text


@pytest.mark.parametrize("model", [SessionConfig, ModelSettings, ContextConfig, PermissionConfig, Limits])
def test_session_configuration_is_documented_with_its_defaults(model: Any) -> None:
    text = section(page("configuration.md"), f"`{model.__name__}`")
    for name, field in model.model_fields.items():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{field.alias or name}` ")), None)
        assert row is not None, name
        if isinstance(field.default, (bool, int, float, str)):
            assert f"| `{str(field.default).lower() if isinstance(field.default, bool) else field.default}` |" in row


@pytest.mark.parametrize("name", PAYLOADS)
def test_event_type_is_documented_with_all_its_fields(name: str) -> None:
    said = section(page("event-log.md"), f"`{name}`")
    assert said
    fields = [field.alias or field_name for field_name, field in PAYLOADS[name].model_fields.items()]
    assert not [field for field in fields if f"`{field}`" not in said]
    assert f"Actor: {PAYLOADS[name].actor}" in said


def test_envelope_and_versions_are_documented() -> None:
    text = page("event-log.md")
    fields = [*Event.model_fields, *Causality.model_fields]
    assert not [name for name in fields if f"`{name}`" not in text]
    assert f"decoder version is {DECODER_VERSION}" in text
    assert f"`{BUILDER_VERSION}`" in page("concepts.md")


def test_slots_are_those_of_the_decoder() -> None:
    files = (ROOT / "salience" / "log" / name for name in ("decode.py", "outcome.py"))
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    made: set[str] = set()
    for pattern in (r'(?:yield|return) \(?\s*f?"([a-z_]+)[:"]', r'_prompt\("([a-z]+)"', r'slot = f"([a-z]+):'):
        made |= set(re.findall(pattern, source))
    told = set(re.findall(r"^\| `([a-z_]+)[:`]", section(page("event-log.md"), "Slots"), re.MULTILINE))
    assert made == told


def test_closed_sets_are_documented() -> None:
    concepts = page("concepts.md")
    assert not [reason for reason in get_args(TerminalReason) if f"| `{reason}` |" not in concepts]
    assert not [kind for kind in get_args(FailureKind) if f"| `{kind}` |" not in concepts]
    assert not [name for name in NAMES if f"`{name}`" not in page("development.md")]


def dependencies() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for group in project["dependency-groups"].values():
        lines += group
    return [re.split(r"[\[<>=!~; ]", line, maxsplit=1)[0] for line in lines]


def test_dependencies_are_those_of_pyproject() -> None:
    told = re.findall(r"^\| `([^`]+)` \|", page("dependencies.md"), re.MULTILINE)
    assert sorted(told) == sorted(dependencies())


def test_rules_that_are_cited_are_explained() -> None:
    told = set(re.findall(r"^\| ([A-Z]+-\d+[a-z]?) \|", page("rules.md"), re.MULTILINE))
    cited: set[str] = set()
    for path in [*sources(), *PAGES]:
        cited |= set(_RULE.findall(path.read_text(encoding="utf-8")))
    assert cited <= told


@pytest.mark.parametrize(("info", "body"), snippets("python"))
def test_python_snippet_compiles_and_runs_where_it_needs_no_server(info: str, body: str) -> None:
    ast.parse(body)
    if "exec" in info.split():
        done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60, cwd=ROOT)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("info", "body"), snippets("yaml"))
def test_yaml_snippet_is_a_script(info: str, body: str) -> None:
    del info
    parse(body, "docs")
    assert isinstance(yaml.safe_load(body), dict)


def anchors(path: Path) -> set[str]:
    """Anchors as GitHub makes them from headings."""
    plain = _FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_internal_links_lead_somewhere(path: Path) -> None:
    dead: list[str] = []
    for target in _LINK.findall(_FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (path.parent / name).resolve() if name else path
        if not place.exists() or (anchor and anchor not in anchors(place)):
            dead.append(target)
    assert not dead


def test_code_names_only_pages_that_exist() -> None:
    pattern = re.compile(r"docs/[\w.-]+\.md")
    named = {name for path in sources() for name in pattern.findall(path.read_text(encoding="utf-8"))}
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_every_page_is_reachable_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [path.name for path in DOCS.glob("*.md") if f"docs/{path.name}" not in readme]


def test_layer_table_of_the_docs_names_the_real_folders() -> None:
    text = page("development.md")
    packages = [path.parent for path in (ROOT / "salience").glob("*/__init__.py")]
    assert not [str(path.relative_to(ROOT)) for path in packages if f"`{path.relative_to(ROOT)}`" not in text]
