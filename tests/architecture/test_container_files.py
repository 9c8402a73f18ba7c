"""The image and the compose file keep their promises. No container engine is needed: the files are read."""

import re
from typing import Any

import pytest
import yaml

from api.gunicorn_server import CLOSE_S, DRAIN_S
from tests.architecture.sources import ROOT

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]


def instructions() -> list[tuple[str, str]]:
    """The instructions of the last stage, continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    pairs = [line.split(maxsplit=1) for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    last = max(number for number, pair in enumerate(pairs) if pair[0] == "FROM")
    return [(pair[0], pair[1]) for pair in pairs[last:]]


def instruction(name: str) -> str:
    """The one instruction of that name."""
    (found,) = [argument for each, argument in instructions() if each == name]
    return found


def test_the_image_is_built_in_two_stages_on_a_slim_python() -> None:
    stages = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
    assert len(stages) == 2
    assert instruction("FROM") == "python:3.11-slim"


def test_the_image_runs_as_a_user_that_is_not_root() -> None:
    assert int(instruction("USER")) > 0


def test_the_image_is_stopped_and_started_without_a_shell_in_between() -> None:
    assert instruction("CMD") == '["python", "-m", "api"]'
    assert instruction("STOPSIGNAL") == "SIGTERM"


def test_the_image_checks_its_health_with_python() -> None:
    check = instruction("HEALTHCHECK")
    assert "/livez" in check
    assert '["python", "-c"' in check


def test_the_image_keeps_its_data_in_a_volume_of_its_own_user() -> None:
    assert instruction("VOLUME") == '["/data"]'
    assert "DATA_DIR=/data" in instruction("ENV")
    assert "install --directory --owner=pythonserver" in str(instructions())


def test_neither_file_holds_a_secret() -> None:
    assert not re.search(r"SECRET\s*=|TOKEN\s*=|KEY\s*=", str(instructions()))
    environment = SERVICES["server"]["environment"]
    assert re.fullmatch(r"\$\{AUTH_JWT_SECRET:\?[^}]+\}", environment["AUTH_JWT_SECRET"])
    for name in ("REMOTE_SESSION_API_TOKEN", "LLM_API_KEY"):
        assert environment[name] == f"${{{name}:-}}"


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_can_do_little_beyond_its_work(service: dict[str, Any]) -> None:
    assert service["read_only"] is True
    assert service["tmpfs"]
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.get("privileged")
    assert "user" not in service


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_is_reachable_from_this_machine_only(service: dict[str, Any]) -> None:
    assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", []))
    assert service.get("network_mode") is None


def test_the_server_waits_for_a_healthy_gateway() -> None:
    assert SERVICES["server"]["depends_on"]["de2generator"]["condition"] == "service_healthy"
    assert "/healthz" in str(SERVICES["de2generator"]["healthcheck"]["test"])
    assert SERVICES["server"]["environment"]["LLM_BASE_URL"].endswith(":-http://de2generator:8001}")


def test_a_shutdown_has_the_time_that_it_takes() -> None:
    seconds = int(SERVICES["server"]["stop_grace_period"].removesuffix("s"))
    assert seconds >= DRAIN_S + CLOSE_S + 5


def test_the_build_sees_neither_secrets_nor_data() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").split("\n")
    allowed = {line for line in lines if line.startswith("!")}
    assert "*" in lines
    assert allowed == {"!requirements.txt", "!pyproject.toml", "!LICENSE", "!PythonServer"}
