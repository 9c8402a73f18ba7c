"""The project's own files, and what is defined in them, read without importing them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "PythonServer" / "src"


def python_files(folder: Path = SRC) -> list[Path]:
    """Every Python file below ``folder``, in order."""
    return sorted(path for path in folder.rglob("*.py") if ".venv" not in path.parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """The file, parsed."""
    return ast.parse(path.read_text("utf-8"), str(path))


def shown(path: Path) -> str:
    """The path as a failure message shows it."""
    return str(path.relative_to(ROOT))


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Every module that is imported, wherever in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "."


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a name or of attributes of one; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""


@cache
def names_in(path: Path) -> frozenset[str]:
    """What a module defines: ``name``, ``Class``, ``Class.member``; members also where ``self.x`` is set."""
    return frozenset(_names(tree_of(path).body))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{member}" for member in _members(node))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            yield from _targets(node)


def _members(owner: ast.ClassDef) -> Iterator[str]:
    yield from _names(owner.body)
    for node in ast.walk(owner):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and dotted(node.value) == "self":
            yield node.attr


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        for each in ast.walk(target):
            if isinstance(each, ast.Name):
                yield each.id
