"""Key and extra headers of an endpoint. They are sent, and shown nowhere."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

from autoj_reward.config import EngineConfig
from autoj_reward.config.urls import ENVIRONMENT, SECRET_CHARS
from autoj_reward.errors import ConfigError
from autoj_reward.logs import LOG

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Pattern of an environment variable's name."""
COMMAND_S = 60.0
"""Seconds that `api_key_command` may take."""


class Credentials:
    """The headers that carry secrets. A key that the endpoint refuses is read again once."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._lock = asyncio.Lock()
        self.key = ""
        """Key that is sent now; empty if the config names none."""
        self.secrets: list[str] = []
        """All values so far that no message may hold."""

    async def read(self) -> dict[str, str]:
        """Return the headers. Raises ConfigError if one of them cannot be read or sent."""
        self.key = await self._read_key()
        headers = self.authorization
        for name, value in self._config.extra_headers.items():
            if value.startswith(ENVIRONMENT):
                variable = value.removeprefix(ENVIRONMENT)
                value = _read_variable(variable, f"extra_headers.{name} names")
            # A short value is no secret, and hiding it would garble any text.
            if len(value) >= SECRET_CHARS:
                self._keep_secret(value, f"the value of extra_headers.{name}")
            headers[name] = value
        return headers

    @property
    def authorization(self) -> dict[str, str]:
        """Header with the key; empty without one, and where the user sets that header."""
        names = {name.lower() for name in self._config.extra_headers}
        if not self.key or "authorization" in names:
            return {}
        return {"Authorization": f"Bearer {self.key}"}

    async def renew(self, refused_key: str) -> bool:
        """Read the key again, and return whether there is another one now.

        refused_key: the key that the endpoint refused. Of several requests with it, the first one
        reads, and the others take what it found.
        """
        async with self._lock:
            if self.key != refused_key:
                return True
            self.key = await self._read_key()
            if self.key != refused_key:
                LOG.warning("the endpoint refused its key: going on with the new one")
            return self.key != refused_key

    async def _read_key(self) -> str:
        config = self._config
        if config.api_key_env:
            key = _read_variable(config.api_key_env, "api_key_env names")
            source = f"the key in {config.api_key_env}"
        elif config.api_key_file:
            key = _read_file(config.api_key_file)
            source = f"the key in {config.api_key_file}"
        elif config.api_key_command:
            key = await _run_command(config.api_key_command)
            source = "the key that api_key_command prints"
        else:
            return ""
        return self._keep_secret(key, source)

    def _keep_secret(self, value: str, source: str) -> str:
        if not (value.isascii() and value.isprintable()):
            raise ConfigError(f"{source} holds characters that no HTTP header can carry")
        if value and value not in self.secrets:
            self.secrets.append(value)
        return value


def _read_variable(name: str, words: str) -> str:
    if not VARIABLE.fullmatch(name):
        # It may be the key itself.
        raise ConfigError(
            f"{words} no environment variable: put the key into a variable, and write its name"
        )
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{words} {name}, which is not set in the environment")
    return value


def _read_file(path: str) -> str:
    try:
        key = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise ConfigError(f"api_key_file {path}: cannot be read: {reason}") from None
    if not key:
        raise ConfigError(f"api_key_file {path}: the file is empty")
    return key


async def _run_command(command: str) -> str:
    """Return what a shell command prints. Its own errors go to stderr, as they are."""
    process = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(COMMAND_S):
            output, _ = await process.communicate()
    except TimeoutError:
        raise ConfigError(f"api_key_command took more than {COMMAND_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise ConfigError(f"api_key_command ended with status {process.returncode}")
    key = output.decode("utf-8", "replace").strip()
    if not key:
        raise ConfigError("api_key_command printed no key")
    return key
