"""The pages of several namespaces. The address says which of them is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define
from starlette.types import Receive, Scope, Send


@define(eq=False)
class Namespaces:
    sites: Mapping[str, Any]  # the pages of each

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = next(iter(self.sites))
        root = scope.get("root_path", "")
        below = scope.get("path", "").removeprefix(root)
        part, slash, rest = below.removeprefix("/").partition("/")
        name = part.removeprefix("@")
        if part != name and name in self.sites and name != first:
            inner = f"{root}/{part}"
            scope = {**scope, "root_path": inner, "path": f"{inner}{slash}{rest}"}
            await self.sites[name](scope, receive, send)
            return
        await self.sites[first](scope, receive, send)
        if scope["type"] == "lifespan":
            await self.close()

    async def close(self) -> None:
        for site in self.sites.values():
            await site.close()


def addresses(namespaces: tuple[str, ...], shown: str, up: str) -> list[tuple[str, str]]:
    """Return the address of each namespace, from a page of the *shown* one that is so far *up*."""
    first = namespaces[0]
    root = up if shown == first else f"{up}../"
    return [(name, f"{root}./" if name == first else f"{root}@{name}/") for name in namespaces]
