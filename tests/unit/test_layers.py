"""The layer table is kept: by import-linter between our modules, and here for what each floor takes from outside."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

OUTSIDE = {
    "salience/model": {"pydantic"},
    "salience/errors.py": set[str](),
    "salience/settings.py": {"pydantic", "pydantic_settings"},
    "salience/log": {"pydantic", "temporalio.api"},
    "salience/projection": {"pydantic"},
    "salience/context": {"pydantic", "tiktoken"},
    "salience/compaction": {"pydantic"},
    "salience/policy": {"pydantic"},
    "salience/providers": {"pydantic", "yaml"},
    "salience/verify": {"pydantic"},
    "workflows": {"temporalio.common", "temporalio.exceptions", "temporalio.workflow"},
}
"""All that the two lower floors and the workflows may import beside the standard library and each other."""

IMPURE = {
    "http", "multiprocessing", "random", "secrets", "select", "shutil", "signal", "socket", "sqlite3", "ssl",
    "subprocess", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
"""Parts of the standard library that talk to the world, or answer differently each time."""

OURS = ("salience", "workflows", "activities")


def modules(place: str) -> list[Path]:
    """The modules of a folder, or the one that is named; none where nothing is built yet."""
    found = ROOT / place
    return sorted(found.rglob("*.py")) if found.is_dir() else [found] if found.exists() else []


def imported(path: Path) -> Iterator[str]:
    """Full dotted names of what a module imports, wherever in it that stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the floor"
            # Whether the last part is a module or a name in one makes no difference to what is allowed.
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(part.value) for part in node.args if isinstance(part, ast.Constant))


def within(name: str, allowed: set[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in allowed)


def test_floors_import_downwards_only() -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("place", OUTSIDE)
def test_a_floor_takes_nothing_from_outside_but_what_it_may(place: str) -> None:
    wrong: list[str] = []
    for path in modules(place):
        for name in imported(path):
            top = name.split(".")[0]
            if top in OURS or within(name, OUTSIDE[place]) or (top in sys.stdlib_module_names and top not in IMPURE):
                continue
            wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def importers(name: str) -> set[str]:
    paths = [path for place in OURS for path in modules(place)]
    return {str(path.relative_to(ROOT)) for path in paths if any(within(each, {name}) for each in imported(path))}


def test_the_model_client_is_imported_where_models_are_called_and_nowhere_else() -> None:
    assert importers("litellm") == {"activities/model.py"}


def test_one_module_makes_temporal_workers() -> None:
    assert importers("temporalio.worker") == {"salience/queues.py", "activities/attempts.py"}
