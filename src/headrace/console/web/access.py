"""The rights of a request, and the check that a POST comes from the pages themselves."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Mapping, Set as AbstractSet
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headrace.console.actions import ACTIONS
from headrace.errors import ConfigurationError

OTHERS = "*"  # in a mapping by queue: all that it does not name
READ = "read"
VISITOR = "headrace_visitor"  # the cookie that tells one browser from another
Rule = str | AbstractSet[str] | None
Granted = Rule | Mapping[str, Rule]
Access = Callable[[Request], Granted | Awaitable[Granted]]


@frozen
class Rights:
    """Rights of a request by queue.

    A right is `None` to see nothing, or a set of actions. `*` stands for all other queues.
    """

    by_queue: Mapping[str, frozenset[str] | None]

    @classmethod
    def of(cls, granted: Any) -> Rights:
        rules: Mapping[str, Any] = granted if isinstance(granted, Mapping) else {OTHERS: granted}  # pyright: ignore[reportUnknownVariableType]
        return cls({name: _actions(rule) for name, rule in rules.items()})

    def _of(self, queue: str) -> frozenset[str] | None:
        return self.by_queue[queue] if queue in self.by_queue else self.by_queue.get(OTHERS)

    @property
    def any(self) -> bool:
        return any(rule is not None for rule in self.by_queue.values())

    def sees(self, queue: str) -> bool:
        return self._of(queue) is not None

    def may(self, queue: str, action: str) -> bool:
        return action in (self._of(queue) or ())


def _actions(rule: Any) -> frozenset[str] | None:
    if rule is None:
        return None
    if rule == READ:
        return frozenset()
    if isinstance(rule, AbstractSet):
        actions: frozenset[Any] = frozenset(rule)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        if actions <= ACTIONS:
            return actions
    raise ConfigurationError(
        f"access answered {rule!r:.100}: give None, 'read', a set of {', '.join(sorted(ACTIONS))}, "
        "or a mapping from queues to these"
    )


async def rights_of(access: Access | None, request: Request) -> Rights:
    if access is None:
        return Rights.of(READ)
    granted: Any = access(request)
    return Rights.of(await granted if inspect.isawaitable(granted) else granted)


def is_same_origin(request: Request) -> bool:
    """Tell whether a page of this very origin sent a POST. Browsers say so by `Sec-Fetch-Site`, or
    by `Origin`.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    host = request.headers.get("host", "")
    return bool(host) and urlsplit(origin).netloc == host


def visitor_of(request: Request) -> str:
    return request.cookies.get(VISITOR, "")


def introduce(request: Request, answer: Response) -> str:
    """Return the secret of the browser that sends a request. A browser that has none gets it with
    *answer*.
    """
    visitor = visitor_of(request)
    if not visitor:
        visitor = secrets.token_urlsafe(24)
        secure = request.url.scheme == "https"
        answer.set_cookie(VISITOR, visitor, httponly=True, samesite="strict", secure=secure)
    return visitor


class TokenAuth:
    """The access rule of `headrace web`. Its token opens a session with all rights, as long as the
    program runs.

    Only requests to names of this machine are answered, against DNS rebinding.
    """

    def __init__(self, host: str, port: int, *, read_only: bool = False) -> None:
        self.port = port
        self.token = secrets.token_urlsafe(24)
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]", host)}
        self._granted: Granted = READ if read_only else ACTIONS
        self._session = secrets.token_urlsafe(32)

    def _ours(self, request: Request) -> bool:
        return request.headers.get("host") in self._hosts

    def access(self, request: Request) -> Granted:
        given = request.cookies.get(self._cookie, "")
        known = secrets.compare_digest(given.encode(), self._session.encode())
        return self._granted if known and self._ours(request) else None

    @property
    def _cookie(self) -> str:
        """The cookie's name, which has the port, as all ports of a host share their cookies."""
        return f"headrace_session_{self.port}"

    def enter(self, request: Request) -> Response | None:
        token = request.query_params.get("token", "")
        known = secrets.compare_digest(token.encode(), self.token.encode())
        if not (known and self._ours(request)):
            return None
        entered = RedirectResponse(".", 303)
        entered.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        return entered
