"""A JSON file that a setting names."""

import json
from pathlib import Path
from typing import Any

from core.errors import ConfigurationError


def read_config(variable: str, path: Path) -> Any:
    """Its content. ``ConfigurationError`` with one line that names the setting and the cure."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"{variable}={str(path)!r} cannot be read ({error.strerror}): give a JSON file, or unset it"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{variable} {path} is not JSON ({error}): mend it, or unset it") from None
