"""What the documents list is what there is: routes, settings, events, problem codes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask_openapi import OpenAPI

from api.app import create_app
from api.auth.jwt_middleware import (
    REMOTE_SESSION_ENDPOINTS,
    USER_SESSION_ENDPOINTS,
    EndpointNotAllowed,
    is_public,
    view_name,
)
from api.auth.key_server import KeyServerUnreachable
from api.errors import HTTP_PROBLEMS
from api.gunicorn_server import CLOSE_S, DRAIN_S
from api.sse import MAX_STREAMS
from core.errors import ProviderError, ServerError
from core.events import EventType
from core.session.inbox import MAX_WAITING
from core.session.portable import MAX_TOLD, MAX_TURNS
from core.settings import Settings
from core.tool.tool import ToolFailed
from tests.architecture.sources import ROOT

README = (ROOT / "README.md").read_text("utf-8")
DOCS = ROOT / "docs"
API_PAGE = (DOCS / "api.md").read_text("utf-8")
#: A block of an example.
FENCE = re.compile(r"```.*?```", re.DOTALL)
ROUTE = re.compile(r"`(GET|POST|PUT|PATCH|DELETE) (/[^`\s]*)`")
#: Parts of the try-out page, which is listed as /docs.
PAGES_OF_DOCS = re.compile(r"/docs/.+")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAPI]:
    """The app with an empty store, and no model behind it."""
    settings = Settings(_env_file=None, data_dir=tmp_path_factory.mktemp("data"), llm_base_url="http://127.0.0.1:9")
    made = create_app(settings)
    yield made
    made.extensions["runtime"].close(10)


def endpoints_of(app: OpenAPI) -> dict[str, str]:
    """``METHOD /path/{name}`` of every route, and its endpoint."""
    found = {}
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        if not PAGES_OF_DOCS.fullmatch(path):
            shown = path.rstrip("/") or "/"
            found |= {f"{method} {shown}": rule.endpoint for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}}
    return found


def routes_of(app: OpenAPI) -> set[str]:
    """``METHOD /path/{name}`` of every route."""
    return set(endpoints_of(app))


def table_rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the rows of the first table below a heading."""
    lines = f"\n{text}".partition(f"\n{heading}\n")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
    return rows


def words(cell: str) -> list[str]:
    """What stands in code type in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_routes_in_the_readme_is_what_the_app_serves(app: OpenAPI) -> None:
    listed = {f"{method} {path}" for row in table_rows(README, "## Routes") for method, path in ROUTE.findall(row[0])}
    assert listed == routes_of(app)


def test_the_table_of_scopes_in_the_page_of_the_api_is_what_the_guard_asks_for(app: OpenAPI) -> None:
    asked = {}
    for route, endpoint in endpoints_of(app).items():
        if view_name(endpoint) in REMOTE_SESSION_ENDPOINTS:
            asked[route] = "the remote session API token"
        elif not is_public(endpoint):
            scopes = sorted(USER_SESSION_ENDPOINTS[view_name(endpoint)])
            asked[route] = " or ".join(f"`{scope}`" for scope in scopes) or "none"
    rows = table_rows(API_PAGE, "## Who may call")
    assert {words(row[0])[0]: row[1] for row in rows} == asked
    assert len(rows) == len(asked)


def test_every_field_of_a_request_or_an_answer_is_in_the_page_of_the_api(app: OpenAPI) -> None:
    text, *fences = re.sub(FENCE, "", API_PAGE), *re.findall(FENCE, API_PAGE)
    said = {name for part in words(text) for name in re.findall(r"\w+", part)}
    said |= {name for fence in fences for name in re.findall(r'"(\w+)":', fence)}
    shapes = app.test_client().get("/openapi.json").json["components"]["schemas"]
    unsaid = {shape: set(parts.get("properties", {})) - said for shape, parts in shapes.items()}
    assert {shape: fields for shape, fields in unsaid.items() if fields} == {}
    assert {"StopAnswerBody", "Interrupt", "CreateRunBody"} <= shapes.keys()


def test_a_listed_page_without_a_parameter_answers(app: OpenAPI) -> None:
    pages = [route.split()[1] for route in routes_of(app) if route.startswith("GET") and "{" not in route]
    answers = {}
    for page in pages:
        with app.test_client().get(page, follow_redirects=True) as response:
            answers[page] = response.status_code
    assert {page: status for page, status in answers.items() if status not in (200, 401)} == {}
    assert "/openapi.json" in answers


def test_every_setting_is_in_the_table_and_nothing_else() -> None:
    rows = table_rows((DOCS / "configuration.md").read_text("utf-8"), "# Configuration")
    listed = [name for row in rows for name in words(row[0])]
    assert listed == [name for name in listed if name.lower() in Settings.model_fields]
    assert {name.lower() for name in listed} == set(Settings.model_fields)


def test_the_defaults_in_the_table_are_those_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)
    settings = Settings(_env_file=None)
    for row in table_rows((DOCS / "configuration.md").read_text("utf-8"), "# Configuration"):
        (name,), default = words(row[0]), words(row[1])
        value = getattr(settings, name.lower())
        if value in (None, ()):
            assert default in ([], ["default"]), name
        elif value is False:
            assert default == ["off"], name
        elif isinstance(value, tuple):
            assert default == [",".join(value)], name
        else:
            assert Path(default[0]) == value if isinstance(value, Path) else default == [str(value)], name


def test_the_example_of_an_env_file_names_only_settings() -> None:
    text = (ROOT / ".env.example").read_text("utf-8")
    names = set(re.findall(r"^#?([A-Z][A-Z_]+)=", text, flags=re.MULTILINE))
    assert names - {name.upper() for name in Settings.model_fields} == set()
    assert not re.search(r"^[^#\n]", text, flags=re.MULTILINE)


def test_every_type_of_event_is_in_the_table() -> None:
    rows = table_rows((DOCS / "events.md").read_text("utf-8"), "# Events")
    assert {word for row in rows for word in words(row[0])} == {str(each) for each in EventType}


def test_every_problem_code_is_in_the_table_with_its_status() -> None:
    problems = {kind.code: kind.status for kind in _kinds(ServerError) if not issubclass(kind, ProviderError | ToolFailed)}
    problems |= {kind.code: kind.status for kind in (EndpointNotAllowed, KeyServerUnreachable)}
    problems |= {code: status for status, (code, _, _) in HTTP_PROBLEMS.items()}
    rows = table_rows(API_PAGE, "## When it goes wrong")
    assert {words(row[0])[0]: int(row[1]) for row in rows} == problems


def test_the_numbers_of_the_operators_page_are_those_of_the_code() -> None:
    text = (DOCS / "operations.md").read_text("utf-8")
    assert f"| {MAX_STREAMS:,};" in text
    assert f"| messages that wait for a run | {MAX_WAITING} |" in text
    assert f"have {DRAIN_S} s to end, then up to {CLOSE_S:.0f} s" in text
    assert f"After {DRAIN_S + CLOSE_S + 2:.0f} s in all" in text


def test_the_limits_of_an_import_are_those_of_the_code() -> None:
    said = f"most {MAX_TURNS:,} turns, {MAX_TOLD:,} messages that came to turns at work, and {MAX_WAITING} that wait"
    assert said in API_PAGE


def _kinds(kind: type[ServerError]) -> Iterator[type[ServerError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
