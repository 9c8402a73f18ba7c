"""The settings: one field a variable, read from the environment and ``.env`` in the working directory."""

import importlib.util
import ipaddress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import SettingsConfigDict

from core.agents_file import AgentSpec, load_agents
from core.errors import ConfigurationError
from core.tool_settings import BUILT_IN, CommaList, ToolSettings, split_list
from core.trusted_key import TrustedKey, check_algorithms, key_server, public_key, secret_key

#: Field -> what to give, for the line that a wrong value gets.
HINTS = {
    "port": "a whole number from 0 to 65535",
    "llm_provider": "de2generator, openai or anthropic",
    "llm": "smollm2, or unset it",
    "turn_workers": "a whole number from 1 to 1000",
    "call_threads": "a whole number from 1 to 10000",
    "cancel_timeout_ms": "a whole number of milliseconds from 1 to 60000",
    "idle_limit_ms": "a whole number of milliseconds from 0 (off) to 604800000",
    "auto_title": "on or off",
    "compact_at_tokens": "a whole number of tokens, or 0 for never",
    "tool_timeout_ms": "a whole number of milliseconds from 1 to 3600000",
    "tool_output_bytes": "a whole number of bytes from 1024 to 67108864",
    "delegate_depth": "a whole number from 1 to 10",
    "delegate_goals": "a whole number from 1 to 1000",
    "log_level": "debug, info, warning or error",
}
#: Kind of provider -> an address as its users know it.
_BASE_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
#: Fields whose value must not be shown, not even when it is wrong.
PRIVATE = {"database_url", "nats_url", "llm_api_key", "auth_jwt_secret", "remote_session_api_token"}


class Settings(ToolSettings):
    """A checked configuration; made by :func:`load_settings`. Never changes while the server runs."""

    model_config = SettingsConfigDict(
        env_file=".env", env_file_encoding="utf-8", env_ignore_empty=True, extra="ignore", frozen=True
    )

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)

    data_dir: Path = Path("./data")
    #: None means SQLite in ``data_dir``.
    database_url: str | None = Field(default=None, repr=False)
    nats_url: str | None = Field(default=None, repr=False)

    llm_provider: Literal["de2generator", "openai", "anthropic"] = "de2generator"
    #: Without a slash at its end; None means the stand-in.
    llm_base_url: str | None = None
    llm_api_key: SecretStr | None = None
    llm_model: str = "default"
    #: What the stand-in answers with: real small weights, or (None) made-up text.
    llm: Literal["smollm2"] | None = None

    auth_jwt_secret: SecretStr | None = None
    auth_jwt_public_key: str | None = Field(default=None, repr=False)
    auth_jwks_url: str | None = None
    auth_jwt_algorithms: CommaList = ()
    auth_issuer: str | None = None
    auth_audience: str | None = None
    remote_session_api_token: SecretStr | None = None

    agents_file: Path | None = None

    turn_workers: int = Field(default=8, ge=1, le=1000)
    call_threads: int = Field(default=256, ge=1, le=10_000)
    cancel_timeout_ms: int = Field(default=500, ge=1, le=60_000)
    #: A turn without progress for so long is stopped, unless its run says otherwise; 0: never.
    idle_limit_ms: int = Field(default=600_000, ge=0, le=7 * 24 * 3600 * 1000)
    auto_title: bool = False
    #: A history of more tokens, by estimate, is compacted before a turn; 0: none is.
    compact_at_tokens: int = Field(default=100_000, ge=0, le=1_000_000_000)

    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("auth_jwt_algorithms", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return split_list(value)

    @field_validator("log_level", "llm_provider", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @field_validator("llm_base_url")
    @classmethod
    def _without_last_slash(cls, value: str | None) -> str | None:
        return value.rstrip("/") if value else value

    @cached_property
    def configured_key(self) -> TrustedKey | None:
        """The key that tokens are checked against; None means the development secret in ``data_dir``."""
        if self.auth_jwt_secret is not None:
            return secret_key(self.auth_jwt_secret.get_secret_value(), self.auth_jwt_algorithms)
        if self.auth_jwt_public_key is not None:
            return public_key(self.auth_jwt_public_key, self.auth_jwt_algorithms)
        if self.auth_jwks_url is not None:
            return key_server(self.auth_jwks_url, self.auth_jwt_algorithms)
        return None

    @cached_property
    def agents(self) -> dict[str, AgentSpec]:
        """Name -> agent; ``default`` is always among them."""
        return load_agents(self.agents_file)

    @property
    def needs_stand_in(self) -> bool:
        """Whether no model is configured, so that the stand-in gateway has to be started."""
        return self.llm_provider == "de2generator" and self.llm_base_url is None


def load_settings() -> Settings:
    """Read and check everything. A ``ConfigurationError`` is one line: variable, value, and the cure."""
    try:
        settings = Settings()
    except ValidationError as error:
        raise _wrong_value(error) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f".env cannot be read ({error}): make it a UTF-8 text file") from None
    for check in (_check_not_built, _check_tools, _check_key, _check_host, _check_model, _check_database):
        check(settings)
    return settings


def _wrong_value(error: ValidationError) -> ConfigurationError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    shown = "" if name in PRIVATE else f"={str(first['input'])[:80]!r}"
    return ConfigurationError(f"{name.upper()}{shown} is wrong: give {HINTS.get(name, 'another value')}")


def _check_not_built(settings: Settings) -> None:
    if settings.nats_url is not None:
        raise ConfigurationError("NATS_URL is set, but more than one replica is not built yet: unset it")


def _check_tools(settings: Settings) -> None:
    allowed = settings.tools_allowed
    for name in allowed:
        # Functions are known once their modules are loaded: core.tool.registry checks the rest.
        if name not in BUILT_IN and not name.startswith("mcp:") and not settings.tool_modules:
            raise ConfigurationError(
                f"TOOLS_ALLOWED names {name[:80]!r}, which is no tool: give {', '.join(BUILT_IN)}, "
                "or set TOOL_MODULES to the modules of your own functions"
            )
    uses_mcp = any(name == "mcp" or name.startswith("mcp:") for name in allowed)
    if uses_mcp and settings.mcp_servers_file is None:
        raise ConfigurationError("TOOLS_ALLOWED names mcp: set MCP_SERVERS_FILE, or leave it out")
    for agent in settings.agents.values():
        for name in agent.tools or ():
            if name not in allowed and not (name.startswith("mcp:") and "mcp" in allowed):
                raise ConfigurationError(
                    f"AGENTS_FILE: agent {agent.name!r} uses {name[:80]!r}, which TOOLS_ALLOWED does not name: add it "
                    "there, or leave it out (of an MCP server an agent has all tools, by mcp:NAME)"
                )
    for name in settings.shell_environment:
        if "=" in name:
            raise ConfigurationError(
                f"SHELL_ENVIRONMENT names {name.partition('=')[0]!r} with a value: give names of variables only"
            )
    for network in settings.http_private_networks:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            raise ConfigurationError(
                f"HTTP_PRIVATE_NETWORKS names {network[:80]!r}: give networks such as 10.1.0.0/16 or 127.0.0.1"
            ) from None


def _check_key(settings: Settings) -> None:
    keys = ("auth_jwt_secret", "auth_jwt_public_key", "auth_jwks_url")
    given = [name.upper() for name in keys if getattr(settings, name) is not None]
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)} are both set: tokens have one signer, so keep one")
    algorithms = settings.auth_jwt_algorithms
    check_algorithms(algorithms)
    if settings.auth_jwks_url is not None:
        _split_url("AUTH_JWKS_URL", settings.auth_jwks_url)
    if settings.configured_key is None and any(not name.startswith("HS") for name in algorithms):
        raise ConfigurationError(
            f"AUTH_JWT_ALGORITHMS={','.join(algorithms)!r} needs a key to check with: "
            "set AUTH_JWT_PUBLIC_KEY or AUTH_JWKS_URL"
        )


def _check_host(settings: Settings) -> None:
    if settings.configured_key is None and not is_loopback(settings.host):
        raise ConfigurationError(
            f"HOST={settings.host!r} would serve the network without a key: set AUTH_JWT_SECRET, "
            "AUTH_JWT_PUBLIC_KEY or AUTH_JWKS_URL, or use HOST=127.0.0.1"
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A name other than ``localhost`` never counts."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_model(settings: Settings) -> None:
    url = settings.llm_base_url
    if url is None:
        if settings.llm_provider != "de2generator":
            example = _BASE_URLS[settings.llm_provider]
            raise ConfigurationError(
                f"LLM_PROVIDER={settings.llm_provider} needs LLM_BASE_URL: set it, such as {example}"
            )
        return
    path = _split_url("LLM_BASE_URL", url).path
    if settings.llm_provider == "openai" and not path.endswith("/v1"):
        raise ConfigurationError(f"LLM_BASE_URL={_shown(url)} must end in /v1 for LLM_PROVIDER=openai: add it")
    if settings.llm_provider == "de2generator" and path.endswith("/v1"):
        raise ConfigurationError(
            f"LLM_BASE_URL={_shown(url)} must not end in /v1 for de2generator: "
            "leave that out, or set LLM_PROVIDER=openai"
        )


def _split_url(variable: str, url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or any(mark in url for mark in "?#\\ \t\r\n"):
        raise ConfigurationError(
            f"{variable}={_shown(url)} is no usable address: give http:// or https://, a host and a path"
        )
    return parts


def _shown(url: str) -> str:
    """The address for a message, without a password that it may hold."""
    head, at, tail = url.rpartition("@")
    return repr((head.partition("://")[0] + "://…@" if at else "") + tail[:80])


def _check_database(settings: Settings) -> None:
    url = settings.database_url
    if url is None or url.startswith("sqlite:///"):
        return
    if not url.startswith(("postgresql://", "postgresql+psycopg://")):
        raise ConfigurationError("DATABASE_URL is wrong: give sqlite:///PATH or postgresql://…, or unset it")
    if importlib.util.find_spec("psycopg") is None:
        raise ConfigurationError(
            "DATABASE_URL names PostgreSQL, whose driver is missing: pip install 'psycopg[binary]'"
        )
