"""Rules that no linter knows."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, SRC, dotted, imported_modules, python_files, shown, tree_of

LONGEST_FILE = 400
#: While a server starts there is nothing yet that a stop could have to wake.
SLEEPS_AT_THE_START = {SRC / "core" / "data_dir.py"}


def calls(path: Path) -> Iterator[tuple[str, int]]:
    """Every call by name, as ``(dotted name, line)``."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and (name := dotted(node.func)):
            yield name, node.lineno


def found(name: str, paths: list[Path]) -> list[str]:
    """Where ``name``, or ``….name``, is called."""
    return [
        f"{shown(path)}:{line}"
        for path in paths
        for called, line in calls(path)
        if called == name or called.endswith(f".{name}")
    ]


def test_every_init_file_is_empty() -> None:
    """An import inside one is invisible to the import linter."""
    full = [shown(path) for path in python_files() if path.name == "__init__.py" and path.read_text().strip()]
    assert full == []


def test_every_folder_with_python_files_is_a_package() -> None:
    """Without the file, the import linter does not see what is inside."""
    folders = {path.parent for path in python_files()} - {SRC}
    missing = [shown(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()]
    assert [folder for folder in missing if "migrations" not in folder] == []


def test_nothing_imports_a_second_copy_of_a_module_through_the_folder() -> None:
    """``PythonServer.src.core`` would be another module than ``core``, with a stop flag of its own."""
    wrong = [
        f"{shown(path)}: {name}"
        for folder in (SRC, ROOT / "tests", ROOT / "benchmarks")
        for path in python_files(folder)
        for name in imported_modules(tree_of(path))
        if name.split(".")[0] == "PythonServer"
    ]
    assert wrong == []


@pytest.mark.parametrize("sentinel", ["Cancelled", "GoalCancelledException"])
def test_only_the_stop_module_builds_a_stop(sentinel: str) -> None:
    elsewhere = [path for path in python_files() if path != SRC / "core" / "cancellation.py"]
    assert found(sentinel, elsewhere) == []


def test_nothing_in_core_sleeps_where_a_stop_could_not_wake_it() -> None:
    paths = [path for path in python_files(SRC / "core") if path not in SLEEPS_AT_THE_START]
    assert found("time.sleep", paths) == []
    assert [shown(path) for path in paths if "sleep" in _names_taken_from("time", path)] == []


def test_nothing_uses_select_which_fails_above_1024_open_files() -> None:
    assert found("select.select", python_files()) == []
    assert [shown(path) for path in python_files() if "select" in _names_taken_from("select", path)] == []


def test_no_file_is_longer_than_400_lines() -> None:
    folders = (SRC, ROOT / "benchmarks", ROOT / "tests" / "support", ROOT / "tests" / "architecture")
    sizes = {path: len(path.read_text("utf-8").splitlines()) for folder in folders for path in python_files(folder)}
    assert [f"{shown(path)}: {size}" for path, size in sizes.items() if size > LONGEST_FILE] == []


def test_the_rules_find_what_they_forbid(tmp_path: Path) -> None:
    guilty = tmp_path / "guilty.py"
    guilty.write_text(
        "import time, select, core.cancellation as c\n"
        "def work():\n    time.sleep(1)\n    select.select([], [], [])\n    raise c.Cancelled(None, None)\n"
        "from time import sleep\nimport PythonServer.src.core\n"
    )
    names = [name for name, _ in calls(guilty)]
    assert names == ["time.sleep", "select.select", "c.Cancelled"]
    assert "sleep" in _names_taken_from("time", guilty)
    assert "PythonServer.src.core" in imported_modules(tree_of(guilty))


def _names_taken_from(module: str, path: Path) -> set[str]:
    return {
        alias.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }
