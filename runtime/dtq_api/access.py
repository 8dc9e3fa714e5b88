"""Who may do what: the keys of contract §13 and decision 23.

DTQ_API_KEY guards what destroys or stops. Reading and submitting stay open unless they get keys of their own; the
admin's keys open everything. Each of them is a comma list, so that keys can be changed without a gap: the new one is
added, the callers move, the old one goes. Comparison takes the same time whatever the caller sent.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from dtq_api.errors import Forbidden, Unauthorized
from dtq_core.config import Settings
from dtq_core.errors import InvalidConfig

Right = Literal["read", "submit", "admin"]


class KeySettings(BaseSettings):
    """Keys beside DTQ_API_KEY. All empty by default: nothing but destructive calls is closed, and those with DTQ_API_KEY."""

    model_config = SettingsConfigDict(
        env_prefix="DTQ_", extra="ignore", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    api_key_file: Path | None = Field(
        None, description="File with the content of DTQ_API_KEY; one key per line or comma."
    )
    api_read_key: SecretStr = Field(SecretStr(""), description="Keys for reading. Empty: everybody may read.")
    api_submit_key: SecretStr = Field(SecretStr(""), description="Keys for submitting. Empty: everybody may submit.")


class Access:
    """The keys of one service."""

    def __init__(self, settings: Settings, extra: KeySettings) -> None:
        """Raises InvalidConfig for a key setting that is there and holds no key, or a file that cannot be read."""
        admin = _split("DTQ_API_KEY", settings.api_key.get_secret_value())
        if extra.api_key_file is not None:
            try:
                admin += _split("DTQ_API_KEY_FILE", extra.api_key_file.read_text(encoding="utf-8"), must_hold=True)
            except (OSError, UnicodeDecodeError) as exc:
                raise InvalidConfig(f"DTQ_API_KEY_FILE: cannot be read ({type(exc).__name__})") from None
        read = _split("DTQ_API_READ_KEY", extra.api_read_key.get_secret_value())
        submit = _split("DTQ_API_SUBMIT_KEY", extra.api_submit_key.get_secret_value())
        self._keys: dict[Right, tuple[bytes, ...]] = {
            "admin": admin,
            "read": (*admin, *read) if read else (),
            "submit": (*admin, *submit) if submit else (),
        }

    def is_open(self, right: Right) -> bool:
        """Whether `right` needs no key."""
        return not self._keys[right]

    def check(self, right: Right, given: bytes | None) -> str:
        """Who the caller is, for the audit: "" where no key is needed, else key- and its place in the list.

        Raises Unauthorized without a key, Forbidden with a wrong one.
        """
        keys = self._keys[right]
        if not keys:
            return ""
        if not given:
            raise Unauthorized("this call needs a key in the header X-API-Key")
        found = 0
        for number, key in enumerate(keys, 1):
            if hmac.compare_digest(key, given):
                found = found or number
        if not found:
            raise Forbidden("the key in X-API-Key is not valid for this call")
        return f"key-{found}"


def _split(name: str, text: str, must_hold: bool = False) -> tuple[bytes, ...]:
    keys = tuple(part.strip().encode() for line in text.splitlines() for part in line.split(",") if part.strip())
    if not keys and (text or must_hold):
        raise InvalidConfig(f"{name}: holds no key")
    return keys
