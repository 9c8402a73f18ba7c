"""TOOL_MODULES and TOOLS_ALLOWED: which functions become tools, and what is refused at the start, in one line."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigurationError
from core.settings import Settings
from core.tool.function.modules import load_functions
from core.tool.registry import Toolbox

HEAD = "from core.tool.python_function import tool\n"
Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a module that can be imported in this test alone; returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # A module that a test imports is no other test's.
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    def make(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(HEAD + text)
        return name

    return make


def _toolbox(tmp_path: Path, allowed: str, modules: str) -> Toolbox:
    fields: dict[str, Any] = {"data_dir": tmp_path, "tools_allowed": allowed, "tool_modules": modules}
    return Toolbox(Settings(_env_file=None, **fields))


def _refusal(tmp_path: Path, allowed: str, modules: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        _toolbox(tmp_path, allowed, modules)
    assert "\n" not in str(caught.value)
    return str(caught.value)


TWO = "@tool\ndef one(a: int) -> int:\n    return a\n@tool(name='second')\ndef two() -> None: ...\ndef three(): ...\n"


def test_only_functions_that_are_marked_and_allowed_are_tools(write: Write, tmp_path: Path) -> None:
    module = write("own_a", TWO)
    assert list(load_functions([module])) == ["one", "second"]
    tools = _toolbox(tmp_path, "second", module).of(None)
    assert list(tools) == ["second"]
    tools = _toolbox(tmp_path, "one,shell,second", module).of(["second", "shell"])
    assert list(tools) == ["second", "shell"]


def test_nothing_is_imported_or_allowed_by_itself(write: Write, tmp_path: Path) -> None:
    module = write("own_a", TWO)
    assert list(_toolbox(tmp_path, "", module).of(None)) == []
    write("own_trap", "raise SystemExit(1)\n")
    assert list(_toolbox(tmp_path, "shell", "").of(None)) == ["shell"]


def test_the_limits_are_those_of_the_settings(write: Write, tmp_path: Path) -> None:
    module = write("own_a", "@tool(timeout_ms=50)\ndef quick() -> None: ...\n@tool\ndef usual() -> None: ...\n")
    fields: dict[str, Any] = {"data_dir": tmp_path, "tools_allowed": "quick,usual", "tool_modules": module}
    tools = Toolbox(Settings(_env_file=None, tool_timeout_ms=7000, **fields)).of(None)
    assert (tools["quick"].timeout_s, tools["usual"].timeout_s) == (0.05, 7)


def test_a_function_that_a_module_has_imported_is_its_too_and_the_same_one(write: Write, tmp_path: Path) -> None:
    write("own_a", TWO)
    both = write("own_b", "from own_a import one\nagain = one\n")
    assert list(load_functions([both])) == ["one"]
    assert list(load_functions(["own_a", both, both])) == ["one", "second"]


def test_an_unknown_name_is_refused_with_what_there_is(write: Write, tmp_path: Path) -> None:
    words = _refusal(tmp_path, "one,tow", write("own_a", TWO))
    assert words.startswith("TOOLS_ALLOWED names 'tow', which is no tool: give ")
    there_are = words.partition("give ")[2].split(", ")
    assert {"shell", "one", "second"} <= set(there_are)
    assert "three" not in there_are


def test_two_functions_of_one_name_are_refused_also_when_neither_is_allowed(write: Write, tmp_path: Path) -> None:
    modules = f"{write('own_a', TWO)},{write('own_b', TWO)}"
    assert _refusal(tmp_path, "", modules) == (
        "TOOL_MODULES: own_a.one and own_b.one are both the tool 'one': give one of them another name"
    )


@pytest.mark.parametrize("name", ["shell", "http_request", "delegate", "mcp"])
def test_a_function_that_hides_a_tool_of_the_server_is_refused(write: Write, tmp_path: Path, name: str) -> None:
    module = write("own_a", f"@tool(name={name!r})\ndef mine() -> None: ...\n")
    assert _refusal(tmp_path, "", module) == (
        f"TOOL_MODULES: own_a.mine has the name of the server's own tool {name!r}: give it another"
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("raise ValueError('first line\\nsecond line')\n", "ValueError: first line second line"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("def broken(:\n", "SyntaxError: invalid syntax (own_a.py, line 2)"),
        ("@tool\nasync def later() -> None: ...\n", "TypeError: @tool cannot take the async function later"),
        ("@tool(name='a b')\ndef f() -> None: ...\n", "ValueError: a tool cannot be called 'a b'"),
    ],
    ids=["no-module", "raises", "exits", "syntax", "async", "name"],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(
    write: Write, tmp_path: Path, text: str, fault: str
) -> None:
    words = _refusal(tmp_path, "shell", write("own_a", text))
    assert words.startswith(f"TOOL_MODULES names 'own_a', which cannot be imported: {fault}")
    assert ("looked for in the folder" in words) == ("ModuleNotFoundError" in fault)


@pytest.mark.parametrize("name", ["nowhere_at_all", "nowhere.at_all", ".relative", "a b"])
def test_a_module_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    assert _refusal(tmp_path, "shell", name).startswith(f"TOOL_MODULES names {name!r}, which cannot be imported: ")


def test_a_long_fault_of_an_import_is_cut(write: Write, tmp_path: Path) -> None:
    assert len(_refusal(tmp_path, "", write("own_a", "raise ValueError('x' * 10_000)\n"))) < 500


def test_an_allowed_function_whose_parameters_cannot_be_told_is_refused(write: Write, tmp_path: Path) -> None:
    module = write("own_a", "@tool\ndef f(a) -> None: ...\n")
    assert _refusal(tmp_path, "f", module) == (
        "TOOL_MODULES: own_a.f cannot be a tool: its parameter 'a' has no type hint"
    )
    assert list(_toolbox(tmp_path, "", module).of(None)) == []
