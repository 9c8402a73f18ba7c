"""From settings to a provider."""

from core.errors import ConfigurationError
from core.provider.anthropic import AnthropicProvider
from core.provider.de2generator import De2GeneratorProvider
from core.provider.openai import OpenAIProvider
from core.provider.provider import Provider


def make_provider(kind: str, base_url: str, api_key: str | None = None) -> Provider:
    """The provider that ``LLM_PROVIDER`` names; ``ConfigurationError`` if a setting is wrong."""
    if kind == "de2generator":
        return De2GeneratorProvider(base_url, api_key)
    if kind == "openai":
        return OpenAIProvider(base_url, api_key)
    if kind == "anthropic":
        return AnthropicProvider(base_url, api_key)
    raise ConfigurationError(f"LLM_PROVIDER must be de2generator, openai or anthropic, not {kind!r}")
