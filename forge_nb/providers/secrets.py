"""Keys and passwords are taken out of what is written to a file that people pass on."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["REMOVED", "Secrets", "harmless_headers"]

REMOVED = "[secret]"
"""What stands where a secret was."""

_MIN_CHARS = 8  # a shorter value is no secret worth the name, and is found in any text
_NAME = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
_FORM = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"sk-[\w-]{16,}"  # OpenAI, Anthropic and those who copied them
    r"|gh[pousr]_\w{20,}|github_pat_\w{20,}"
    r"|xox[abeprs]-[\w-]{10,}"  # Slack
    r"|A[KS]IA[0-9A-Z]{16}"  # Amazon
    r"|AIza[\w-]{30,}"  # Google
    r"|hf_\w{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"  # a signed web token
    r")"
    r"|(?<=Bearer )[\w.~+/=-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_HEADERS = re.compile(
    r"(?:retry-after(?:-ms)?|(?:x-|anthropic-)?ratelimit-[\w-]+|(?:x-)?request-id|content-type|date)",
    re.IGNORECASE,
)


class Secrets:
    """Knows what must not be written.

    Parameters
    ----------
    environment
        Variables whose names end like those of secrets; their values are taken out wherever they
        stand. The process's own when None.

    Examples
    --------
    >>> Secrets({"API_KEY": "correct horse"}).without({"said": "it is correct horse, I think"})
    {'said': 'it is [secret], I think'}
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        found = os.environ if environment is None else environment
        values = {
            value.strip()
            for name, value in found.items()
            if _NAME.search(name) and len(value.strip()) >= _MIN_CHARS
        }
        escaped = {json.dumps(value)[1:-1] for value in values}  # as in JSON inside of a text
        self._values = sorted(values | escaped, key=len, reverse=True)  # longer ones hold others

    def without(self, value: Any) -> Any:
        """Return a value of JSON's types with every secret in it replaced."""
        if isinstance(value, str):
            return self._cleaned(value)
        if isinstance(value, dict):
            return {self.without(key): self.without(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.without(item) for item in value]
        return value

    def _cleaned(self, text: str) -> str:
        if len(text) < _MIN_CHARS:
            return text
        for value in self._values:
            text = text.replace(value, REMOVED)
        return _FORM.sub(REMOVED, text)


def harmless_headers(headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return the response headers that tell about limits and waits, and no others."""
    if headers is None:
        return None
    return {name: value for name, value in headers.items() if _HEADERS.fullmatch(name)}
