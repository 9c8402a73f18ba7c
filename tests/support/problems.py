"""How every refusal looks."""

from typing import Any

import requests


def assert_problem(answer: requests.Response, status: int, code: str) -> dict[str, Any]:
    """A problem document with that status and code, and nothing of our inside; the document."""
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert (problem["status"], problem["code"]) == (status, code), problem
    assert problem.keys() >= {"type", "title", "detail", "instance"}
    for trace in ("Traceback", 'File "', "<html", "pydantic", "sqlalchemy"):
        assert trace not in answer.text
    return problem
