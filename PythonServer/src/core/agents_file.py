"""The agents that a deployment defines, read from AGENTS_FILE."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from core.config_file import read_config
from core.errors import ConfigurationError

DEFAULT_AGENT = "default"


class AgentSpec(BaseModel):
    """Who answers. Neither ``model`` nor ``model_pattern``: the model of the settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.:-]+$")
    instructions: str = ""
    model: str | None = Field(default=None, min_length=1)
    #: A glob; the newest model that the provider lists and that fits it answers.
    model_pattern: str | None = Field(default=None, min_length=1, max_length=200)
    #: Answers where the first model fails.
    fallback_model: str | None = Field(default=None, min_length=1)
    #: None means every tool that is allowed.
    tools: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check_models(self) -> Self:
        if self.model is not None and self.model_pattern is not None:
            raise ValueError("model and model_pattern exclude each other; leave one out")
        if self.fallback_model is not None and self.fallback_model == self.model:
            raise ValueError("fallback_model is the model itself; give another one")
        return self


def load_agents(path: Path | None) -> dict[str, AgentSpec]:
    """Name -> agent; ``default`` is always among them.

    The file is ``{"agents": [{"name": …, "instructions": …, "model": …, "fallback_model": …, "tools": […]}]}`` or the bare
    list; ``model_pattern`` may stand in place of ``model``.
    Raises ``ConfigurationError`` with one line that says where it is wrong.
    """
    agents = {DEFAULT_AGENT: AgentSpec(name=DEFAULT_AGENT)}
    if path is None:
        return agents
    seen: set[str] = set()
    for number, entry in enumerate(_entries(path), start=1):
        agent = _agent(entry, number, path)
        if agent.name in seen:
            raise ConfigurationError(f"AGENTS_FILE {path}: two agents are called {agent.name!r}; rename one")
        seen.add(agent.name)
        agents[agent.name] = agent
    return agents


def _entries(path: Path) -> list[Any]:
    content = read_config("AGENTS_FILE", path)
    entries = content.get("agents") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise ConfigurationError(f'AGENTS_FILE {path} has the wrong shape: give {{"agents": [{{"name": …}}]}}')
    return entries


def _agent(entry: Any, number: int, path: Path) -> AgentSpec:
    try:
        return AgentSpec.model_validate(entry)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the entry"
        raise ConfigurationError(f"AGENTS_FILE {path}, agent {number}: {where}: {first['msg']}") from None
