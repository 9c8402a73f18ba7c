"""From settings to the agents, with their tools and the provider that answers them."""

from typing import Final

from core.agent.agent import Agent, AgentProfile
from core.agent.model_catalog import ModelCatalog
from core.agent.model_choice import ModelWish
from core.provider.make_provider import make_provider
from core.provider.provider import Provider
from core.settings import Settings
from core.tool.registry import Toolbox

#: What an agent is told that was given no instructions.
DEFAULT_INSTRUCTIONS: Final = "You are a helpful assistant. Answer the user's request directly."


def provider_of(settings: Settings) -> Provider:
    """The provider that the settings name; close it."""
    assert settings.llm_base_url is not None
    key = settings.llm_api_key.get_secret_value() if settings.llm_api_key is not None else None
    return make_provider(settings.llm_provider, settings.llm_base_url, key)


def agents_of(settings: Settings, provider: Provider, toolbox: Toolbox) -> dict[str, Agent]:
    """Name -> agent; ``default`` is always among them. An agent that names no tools may use all that are allowed."""
    catalog = ModelCatalog(provider)
    agents = {}
    for name, spec in settings.agents.items():
        profile = AgentProfile(
            name,
            spec.instructions or DEFAULT_INSTRUCTIONS,
            spec.model_pattern or spec.model or settings.llm_model,
            toolbox.of(spec.tools),
            ModelWish(spec.model_pattern, spec.fallback_model),
        )
        agents[name] = Agent(profile, provider, settings.cancel_timeout_ms / 1000, catalog=catalog)
    return agents
