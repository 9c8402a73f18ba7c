"""/openapi.json says what the routes take and answer."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from api import answers
from api.app import create_app
from api.auth.jwt_middleware import USER_SESSION_ENDPOINTS
from core.settings import Settings
from tests.architecture.sources import ROOT

METHODS = {"get", "post", "put", "patch", "delete"}
#: Statuses of a request that has a body.
ABOUT_BODIES = {"400", "413", "415"}


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The document, through JSON and back."""
    settings = Settings(_env_file=None, data_dir=tmp_path_factory.mktemp("data"), llm_base_url="http://127.0.0.1:9")
    app = create_app(settings)
    app.extensions["runtime"].close(10)
    found: dict[str, Any] = json.loads(app.test_client().get("/openapi.json").text)
    return found


def operations(description: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """``METHOD /path`` and its description."""
    for path, item in description["paths"].items():
        yield from ((f"{method.upper()} {path}", item[method]) for method in METHODS & item.keys())


def references(node: Any) -> Iterator[str]:
    """Every ``$ref`` in the document."""
    if isinstance(node, dict):
        yield from (value for name, value in node.items() if name == "$ref" and isinstance(value, str))
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def parameters(operation: dict[str, Any], place: str) -> set[str]:
    """The names of its parameters in the header, the path or the query."""
    return {each["name"] for each in operation.get("parameters", []) if each["in"] == place}


#: 202 if it has started a turn, 200 if it has undone something.
TWO_SUCCESSES = {"POST /v1/runs/{run_id}/compact"}


def test_every_route_has_one_success_with_a_form(description: dict[str, Any]) -> None:
    found = {
        route: [bool(answer["content"]) for status, answer in operation["responses"].items() if status[0] == "2"]
        for route, operation in operations(description)
    }
    assert len(found) > len(USER_SESSION_ENDPOINTS)
    assert {route: forms for route, forms in found.items() if forms != [True] * (1 + (route in TWO_SUCCESSES))} == {}


def test_every_reference_leads_somewhere(description: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    assert set(references(description)) - known == set()


def test_every_answer_schema_stands_in_the_document(description: dict[str, Any]) -> None:
    named = {name for name, each in vars(answers).items() if isinstance(each, type) and issubclass(each, BaseModel)}
    assert named - {"BaseModel", "RunCreated"} - description["components"]["schemas"].keys() == set()


def test_an_error_is_a_problem_document(description: dict[str, Any]) -> None:
    for route, operation in operations(description):
        for status, answer in operation["responses"].items():
            if status[0] in "45" and (route, status) != ("GET /readyz", "503"):
                assert list(answer["content"]) == ["application/problem+json"], f"{route} {status}"


def test_only_a_route_with_a_body_refuses_bodies_and_only_one_that_changes_something_conflicts(
    description: dict[str, Any],
) -> None:
    for route, operation in operations(description):
        statuses = operation["responses"].keys()
        has_body = "requestBody" in operation
        assert statuses & ABOUT_BODIES == (ABOUT_BODIES if has_body else set()), route
        assert has_body or route.startswith("DELETE") or "409" not in statuses, route
        assert ("401" in statuses) == bool(operation.get("security")), route
        assert "404" in statuses or not parameters(operation, "path"), route


def test_the_headers_that_a_client_may_send_are_described(description: dict[str, Any]) -> None:
    found = {route: parameters(operation, "header") for route, operation in operations(description)}
    assert {route: names for route, names in found.items() if names} == {
        "POST /v1/runs": {"Idempotency-Key"},
        "GET /v1/runs/{run_id}/events": {"Last-Event-ID"},
    }


def test_both_forms_of_a_streamed_answer_are_described(description: dict[str, Any]) -> None:
    paths = description["paths"]
    assert set(paths["/v1/runs"]["post"]["responses"]["201"]["content"]) == {"application/json", "text/event-stream"}
    assert set(paths["/v1/runs/{run_id}/events"]["get"]["responses"]["200"]["content"]) == {"text/event-stream"}


def test_the_example_of_a_new_run_is_one(description: dict[str, Any]) -> None:
    (example,) = description["components"]["schemas"]["CreateRunBody"]["examples"]
    assert example == {"input": "Compare three ways to store an event log"}


def test_a_summary_has_no_marks_that_nobody_renders(description: dict[str, Any]) -> None:
    shown = [
        text
        for _, operation in operations(description)
        for text in (operation["summary"], operation.get("description", ""))
    ]
    assert [text for text in shown if "`" in text] == []


def test_every_field_of_an_answer_is_on_the_page_about_the_api() -> None:
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    words = set(re.findall(r"\w+", " ".join(re.findall(r"```.*?```|`[^`]+`", page, flags=re.DOTALL))))
    models = [each for each in vars(answers).values() if isinstance(each, type) and issubclass(each, BaseModel)]
    assert {name for model in models for name in model.model_fields} - words == set()
