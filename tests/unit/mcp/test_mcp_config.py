"""MCP_SERVERS_FILE, and which tools an agent gets of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from core.errors import ConfigurationError
from core.settings import Settings
from core.tool.mcp.config import HttpEntry, StdioEntry, load_mcp_servers
from core.tool.registry import Toolbox

VARIABLES = {"TOKEN": "the-secret", "HOST": "somewhere", "LINE": "with-its-end\n"}


def _load(path: Path, content: Any) -> dict[str, Any]:
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return dict(load_mcp_servers(path, VARIABLES))


def test_both_kinds_of_servers_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    servers = {
        "files": {"command": "npx", "args": ["-y", "files", "/data"], "env": {"A": "b"}, "cwd": "/tmp"},
        "far-away": {"url": "https://example.org/mcp", "headers": {"X": "y"}, "type": "http"},
    }
    found = _load(tmp_path / "mcp.json", {"mcpServers": servers})
    assert list(found) == ["files", "far-away"]
    assert found["files"] == StdioEntry(command="npx", args=("-y", "files", "/data"), env={"A": "b"}, cwd=Path("/tmp"))
    assert found["far-away"] == HttpEntry(url="https://example.org/mcp", headers={"X": "y"})


def test_secrets_come_from_the_servers_environment(tmp_path: Path) -> None:
    servers = {
        "a": {"command": "a", "args": ["${TOKEN}"], "env": {"KEY": "${TOKEN}", "BOTH": "${HOST}:${TOKEN}$HOME"}},
        "b": {"url": "http://b", "headers": {"Authorization": "Bearer ${TOKEN}"}},
    }
    found = _load(tmp_path / "mcp.json", {"mcpServers": servers})
    assert found["a"].env == {"KEY": "the-secret", "BOTH": "somewhere:the-secret$HOME"}
    assert found["a"].args == ("${TOKEN}",)  # everybody on the machine can read a process's arguments
    assert found["b"].headers == {"Authorization": "Bearer the-secret"}
    assert "the-secret" not in repr(found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ["is not JSON"]),
        ([], ["wrong shape", "mcpServers"]),
        ({"servers": {}}, ["wrong shape"]),
        ({"mcpServers": []}, ["wrong shape"]),
        ({"mcpServers": {"a": 1}}, ["server 'a'", "command or a url"]),
        ({"mcpServers": {"a": {}}}, ["server 'a'", "command or a url"]),
        ({"mcpServers": {"a": {"command": "a", "url": "http://a"}}}, ["command or a url"]),
        ({"mcpServers": {"a,b": {"command": "a"}}}, ["server 'a,b'", "rename"]),
        ({"mcpServers": {"a": {"command": ""}}}, ["server 'a': command"]),
        ({"mcpServers": {"a": {"command": "a", "args": "b"}}}, ["server 'a': args"]),
        ({"mcpServers": {"a": {"command": "a", "args": ["b\0"]}}}, ["server 'a': args.0", "zero byte"]),
        ({"mcpServers": {"a": {"command": "a", "arg": ["b"]}}}, ["server 'a': arg"]),
        ({"mcpServers": {"a": {"command": "a", "env": {"B": 1}}}}, ["server 'a': env.B"]),
        ({"mcpServers": {"a": {"command": "a", "env": {"B": "${NO_SUCH}"}}}}, ["server 'a', env", "${NO_SUCH}", "set"]),
        ({"mcpServers": {"a": {"url": "ftp://a"}}}, ["server 'a': url"]),
        ({"mcpServers": {"a": {"url": "http://a", "type": "sse"}}}, ["server 'a': type"]),
        ({"mcpServers": {"a": {"url": "http://[::1"}}}, ["server 'a': url", "address"]),
        ({"mcpServers": {"a": {"url": "http://a:99999/"}}}, ["server 'a': url", "address"]),
        ({"mcpServers": {"a": {"url": "http://a b/"}}}, ["server 'a': url", "address"]),
        ({"mcpServers": {"a": {"url": "http:///mcp"}}}, ["server 'a': url", "address"]),
        ({"mcpServers": {"a": {"url": "http://a/\ud83d"}}}, ["server 'a': url", "address"]),
        ({"mcpServers": {"a": {"url": "http://a", "headers": {"X Y": "b"}}}}, ["server 'a': headers.X Y", "name"]),
        ({"mcpServers": {"a": {"url": "http://a", "headers": {"X\nY": "b"}}}}, ["server 'a': headers.X?Y", "name"]),
        ({"mcpServers": {"a": {"url": "http://a", "headers": {"Host": "b"}}}}, ["server 'a': headers.Host"]),
        ({"mcpServers": {"a": {"url": "http://a", "headers": {"X": "b\n"}}}}, ["headers: the value of X"]),
        ({"mcpServers": {"a": {"url": "http://a", "headers": {"X": "\u20ac"}}}}, ["headers: the value of X"]),
        ({"mcpServers": {"a": {"url": "http://a", "headers": {"X": "${LINE}"}}}}, ["headers: the value of X"]),
        ({"mcpServers": {"a": {"command": "a", "env": {"B=C": "d"}}}}, ["server 'a': env.B=C", "no '='"]),
        ({"mcpServers": {"a": {"command": "a", "env": {"": "d"}}}}, ["server 'a': env.", "not empty"]),
        ({"mcpServers": {"a": {"command": "a", "env": {"B\0": "d"}}}}, ["server 'a': env.B?", "zero byte"]),
        ({"mcpServers": {"a": {"command": "a", "env": {"B": "\ud83d"}}}}, ["server 'a': env.B", "half a character"]),
        ({"mcpServers": {"a": {"command": "a", "cwd": "\ud83d"}}}, ["server 'a': cwd"]),
        ({"mcpServers": {"a": {"command": "a", "cwd": "b\0"}}}, ["server 'a': cwd"]),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, content: Any, words: list[str]) -> None:
    path = tmp_path / "mcp.json"
    with pytest.raises(ConfigurationError) as caught:
        _load(path, content)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert str(caught.value).isprintable()
    assert "with-its-end" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_mcp_servers(tmp_path / "none.json", {})


# -- the toolbox -------------------------------------------------------------------------------


def _settings(tmp_path: Path, allowed: str, agent_tools: list[str] | None = None) -> Settings:
    servers = tmp_path / "mcp.json"
    servers.write_text(json.dumps({"mcpServers": {"a": {"command": "a"}, "b": {"command": "b"}}}), "utf-8")
    agents = tmp_path / "agents.json"
    agents.write_text(json.dumps([{"name": "x", "tools": agent_tools}] if agent_tools else []), "utf-8")
    fields: dict[str, Any] = {"tools_allowed": allowed, "mcp_servers_file": servers, "agents_file": agents}
    return Settings(_env_file=None, data_dir=tmp_path, **fields)


def test_one_server_may_be_allowed_alone_and_an_agent_may_name_one_of_all(tmp_path: Path) -> None:
    alone = Toolbox(_settings(tmp_path, "mcp:b"))
    assert alone.mcp_status == [{"name": name, "state": "connecting", "tools": 0} for name in ("a", "b")]
    of_all = Toolbox(_settings(tmp_path, "mcp", ["mcp:a"]))
    assert list(of_all.of(["mcp:a"])) == list(of_all.of(None)) == []
    alone.close()


@pytest.mark.parametrize(("allowed", "agent_tools"), [("mcp:none", None), ("mcp", ["mcp:none"]), ("mcp:", None)])
def test_a_server_that_is_not_in_the_file_is_refused_in_one_line(
    tmp_path: Path, allowed: str, agent_tools: list[str] | None
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Toolbox(_settings(tmp_path, allowed, agent_tools))
    assert "mcp:a, mcp:b" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_sdk_is_not_loaded_where_no_server_is_used() -> None:
    code = "import sys, core.tool.registry; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
