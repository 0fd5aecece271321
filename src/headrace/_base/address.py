"""The server of a queue or worker, from the arguments or the environment; joined, if it is an embedded one."""

from __future__ import annotations

import os
import re

from headrace._base.connections import Attend
from headrace._embedded.server import EmbeddedServer
from headrace.errors import ConfigurationError


class Address:
    """Address of a server: a URL, or `None` for a client's own. Joins the embedded server that the URL names."""

    def __init__(self, url: str | None) -> None:
        self.url = url
        self.embedded: EmbeddedServer | None = None

    @classmethod
    def of(cls, url: str | None, client: object, wanted: type, asker: object) -> Address:
        """Make the address of *url*, the environment, or *client*, which must be a *wanted*. Refuses *url* beside
        *client*.
        """
        if client is None:
            return cls(given(url))
        if url is not None:
            raise ValueError("give url= or client=, not both")
        if not isinstance(client, wanted):
            raise TypeError(
                f"client must be a {wanted.__module__}.{wanted.__name__} for {type(asker).__name__}, "
                f"not {type(client).__module__}.{type(client).__name__}"
            )
        return cls(None)

    @property
    def target(self) -> str | None:
        """The URL to connect to."""
        return self.url if self.embedded is None else f"unix://{self.embedded.path}"

    @property
    def attend(self) -> Attend | None:
        """The callback that keeps the joined embedded server running, if there is one."""
        return None if self.embedded is None else self.embedded.attend

    def join(self) -> str | None:
        """Join the embedded server, if the URL names one; return the URL to connect to."""
        if self.embedded is None and self.url is not None and self.url.startswith("embedded:"):
            self.embedded = EmbeddedServer.join(self.url.removeprefix("embedded:") or ".")
        return self.target

    def leave(self) -> None:
        """Leave the embedded server."""
        if self.embedded is not None:
            self.embedded.leave()
            self.embedded = None


def given(url: str | None, option: str = "pass url=", besides: str = ", or client=") -> str:
    """Return the URL to use: the one given, else `HEADRACE_URL`, else `REDIS_URL`."""
    found = url or os.environ.get("HEADRACE_URL") or os.environ.get("REDIS_URL")
    if not found:
        raise ConfigurationError(
            f"no server named: {option} (redis://…, rediss://…, unix://…, or embedded:DIR for a "
            f"private one){besides}, or set HEADRACE_URL or REDIS_URL"
        )
    if not isinstance(found, str):
        raise TypeError(f"url must be a str, not {type(found).__name__}")
    if not re.match(r"(redis|rediss|unix|embedded):", found):
        shown = re.sub(r".*@", "…@", found)  # without a password
        raise ConfigurationError(f"url {shown!r}: give redis://…, rediss://…, unix://… or embedded:DIR")
    return found
