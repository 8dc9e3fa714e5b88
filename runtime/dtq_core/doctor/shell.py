"""Lines for a shell that go to the very server we talk to, hold no password, and are harmless whatever a name holds.

A password stays where it is: in DTQ_REDIS_URL, or where a call was given another address, in GIVEN_URL, without which
the shell says what is missing and runs nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

_EXPORTED = '"$DTQ_REDIS_URL"'
_GIVEN = '"${GIVEN_URL:?set it to the address of the server}"'


@dataclass(frozen=True, slots=True)
class Shell:
    """How `redis-cli` and `dtq` are called for one server."""

    redis_cli: str = "redis-cli"
    env: str = ""
    """What stands before `dtq`; empty where it finds the server by itself."""

    @classmethod
    def at(cls, url: str, env: Mapping[str, str], *, elsewhere: bool = False) -> Shell:
        """For the server of `url` in a shell with `env`. `elsewhere`: a bare `dtq` there would use another one."""
        exported = env.get("DTQ_REDIS_URL") == url
        secret = has_secret(url)
        word = shlex.quote(url) if not secret else _EXPORTED if exported else _GIVEN
        before = f"DTQ_REDIS_URL={word} " if elsewhere and not exported else ""
        return cls(_unix(url) if url.startswith("unix:") else f"redis-cli -u {word}{_tls(url)}", before)

    def redis(self, *words: str) -> str:
        """One `redis-cli` command; each word is quoted where a shell would read something into it."""
        return " ".join([self.redis_cli, *map(quote, words)])

    def dtq(self, *words: str) -> str:
        return " ".join([f"{self.env}dtq", *map(quote, words)])

    def removal(self, prefix: str) -> str:
        """Delete every key under `prefix`, and nothing else, even if a name has a line break in it."""
        only = f"grep {quote(f'^{_literal(prefix)}:')} | tr '\\n' '\\0'"
        return f"{self._scan(prefix)} | {only} | xargs -0 {self.redis_cli} unlink"

    def expire(self, prefix: str, end: str, ttl_s: int) -> str:
        """Give every key under `prefix` that ends with `end` and has no time to live this one.

        Names that would need quoting are left out.
        """
        line = rf's/^\({_literal(prefix)}:[^"\]*{end}\)$/EXPIRE "\1" {ttl_s} NX/p'
        return f"{self._scan(prefix)} | sed -n {quote(line)} | {self.redis_cli}"

    def _scan(self, prefix: str) -> str:
        return f"{self.redis_cli} --scan --pattern {quote(f'{prefix}:*')}"


def has_secret(url: str) -> bool:
    parts = urlsplit(url)
    return parts.password is not None or "password=" in parts.query


def quote(word: str) -> str:
    """`word` for a shell, in one line: what cannot be printed is spelt as $'…', which bash, zsh and ksh read."""
    if word.isprintable():
        return shlex.quote(word)
    spelt = "".join(
        f"\\x{byte:02x}" if byte < 0x20 or byte > 0x7E or chr(byte) in "'\\" else chr(byte)
        for byte in word.encode(errors="surrogateescape")
    )
    return f"$'{spelt}'"


def _literal(prefix: str) -> str:
    """For grep and sed. Of what a prefix may hold, only the dot means something to them."""
    return prefix.replace(".", r"\.")


def _unix(url: str) -> str:
    """redis-cli takes no unix:// address."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    words = ["redis-cli", "-s", unquote(parts.path), "-n", query.get("db", ["0"])[0]]
    if name := unquote(parts.username or "") or query.get("username", [""])[0]:
        words += ["--user", name]
    line = " ".join(map(quote, words))
    return f'{line} -a "${{PASSWORD:?set it to the password of the server}}"' if has_secret(url) else line


def _tls(url: str) -> str:
    """The options of redis-cli for what the query of a rediss:// address says of certificates."""
    if not url.startswith("rediss:"):
        return ""
    query = parse_qs(urlsplit(url).query)
    words: list[str] = []
    for name, option in (("ssl_ca_certs", "--cacert"), ("ssl_certfile", "--cert"), ("ssl_keyfile", "--key")):
        if name in query:
            words += [option, query[name][0]]
    if query.get("ssl_cert_reqs", ["required"])[0] == "none":
        words.append("--insecure")
    return "".join(f" {quote(word)}" for word in words)
