"""The two settings that every provider takes, checked once at the start."""

from urllib.parse import urlsplit

from core.errors import ConfigurationError


def clean_url(url: str) -> str:
    """The address without trailing slashes; ``ConfigurationError`` if it is not one of a web server."""
    url = url.strip().rstrip("/")
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.query or parts.fragment:
        raise ConfigurationError("LLM_BASE_URL must be an address such as http://127.0.0.1:8080/v1")
    return url


def clean_key(key: str | None) -> str | None:
    """The key, or None for an empty one; ``ConfigurationError`` if no header can carry it."""
    key = (key or "").strip()
    if not key:
        return None
    if not key.isascii() or not key.isprintable():
        raise ConfigurationError("LLM_API_KEY holds characters that an HTTP header cannot carry")
    return key
