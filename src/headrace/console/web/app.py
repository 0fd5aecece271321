"""The pages as an ASGI application, to run by itself or to mount below any prefix.

Every link is relative, so the application needs no prefix. Each request is judged in one order, its
rights first. GET shows, and changes nothing. POST acts, if it comes from these pages and the action
is granted for the queue.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import redis
import redis.asyncio
from attrs import frozen
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import Message, Receive, Scope, Send

from headrace import Job
from headrace.codecs import Codec
from headrace.console.actions import CALLS, Form, act
from headrace.console.texts import FAILURES, Refused, complaint
from headrace.console.web.access import (
    Access,
    Rights,
    TokenAuth,
    introduce,
    is_same_origin,
    rights_of,
    visitor_of,
)
from headrace.console.web.crumbs import crumbs, without_ask
from headrace.console.web.namespaces import Namespaces, addresses
from headrace.console.web.pages import PAGES
from headrace.console.web.pages.queue import FILTERS
from headrace.console.web.render import STATIC, render, static_files, to
from headrace.console.web.request import NotThere, PageRequest
from headrace.errors import ConfigurationError
from headrace.inspect import AsyncInspector
from headrace.platform import VERBS, check_names, log_event

AsyncClient = redis.asyncio.Redis | redis.asyncio.RedisCluster
Redact = Callable[[str, str, Job[Any]], str]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
PAGE_WITHIN_S = 5.0  # seconds that a page may take, after the pages of other viewers
FORM_BYTES = 2 << 20  # of a form at most
FORM = "application/x-www-form-urlencoded"


@frozen
class Outcome:
    """The outcome of an action. It is shown once, to the browser that took it, on the page that
    follows it.
    """

    text: str
    visitor: str
    place: tuple[str, tuple[tuple[str, str], ...]]


class Pages:
    def __init__(
        self,
        server: dict[str, Any],
        namespace: str,
        access: Access | None,
        redact: Redact | None,
        codecs: Mapping[str, Codec[Any]] | None = None,
        trace_url: str = "",
        auth: TokenAuth | None = None,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self._server, self._namespace, self._access, self._auth = server, namespace, access, auth
        self._namespaces = namespaces or (namespace,)
        self._options: dict[str, Any] = {
            "redact": redact,
            "codecs": codecs,
            "timeout": 2.0,  # seconds for which a round trip is tried
        }
        self._trace_url = trace_url
        self._inspector: AsyncInspector | None = self._new_inspector()  # refuses bad arguments now
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outcomes: OrderedDict[str, Outcome] = OrderedDict()
        self._version, self._static = static_files()

    def _new_inspector(self) -> AsyncInspector:
        return AsyncInspector(namespace=self._namespace, **self._server, **self._options)

    def _reader(self) -> AsyncInspector:
        loop = asyncio.get_running_loop()
        if self._inspector is None or self._loop not in (None, loop):
            self._inspector = self._new_inspector()
        self._loop = loop
        return self._inspector

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                named = {**scope, "headrace.namespace": self._namespace}
                answer = await self._answer(Request(named, receive))
            except ClientDisconnect:
                return
            answer.headers.update(
                {name: value for name, value in HEADERS.items() if name not in answer.headers}
            )
            await answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message: Message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def close(self) -> None:
        if self._inspector is not None:
            inspector, self._inspector = self._inspector, None
            await inspector.close()

    async def _answer(self, request: Request) -> Response:
        name = _name_of(request)
        reading = request.method in ("GET", "HEAD")
        if self._auth is not None and request.method == "GET" and not name:
            entered = self._auth.enter(request)
            if entered is not None:
                return entered
        if reading and name.startswith("static/"):
            return self._file(name.removeprefix("static/"))
        rights = await rights_of(self._access, request)
        if not rights.any:
            return self._closed()
        # Litestar adds a slash to `path`
        raw = request.scope.get("raw_path") or str(request.scope["path"]).encode()
        asked = raw.partition(b"?")[0]
        if reading and not name and not asked.endswith(b"/"):  # links are relative to the folder
            return RedirectResponse(f"{asked.rpartition(b'/')[2].decode('ascii', 'replace')}/", 307)
        try:
            return await self._shown(name, request, rights)
        except FAILURES as error:
            status = _status(error)
            return self._error(
                request, status, complaint(error), rights, retry=reading and status == 503
            )

    async def _shown(self, name: str, request: Request, rights: Rights) -> Response:
        if name.startswith("do/"):
            if request.method != "POST":
                return Response(status_code=405, headers={"allow": "POST"})
            return await self._act(name.removeprefix("do/"), request, rights)
        if name not in PAGES:
            raise NotThere("There is no such page.")
        if request.method not in ("GET", "HEAD"):
            return Response(status_code=405, headers={"allow": "GET, HEAD"})
        return await self._page(name, request, rights)

    def _file(self, address: str) -> Response:
        """Answer with a static file. It is kept for ever, unless the page that links to it is of
        another version.
        """
        version, _, name = address.rpartition("/")
        if name not in STATIC:
            return PlainTextResponse("not found", 404)
        kept = {"cache-control": "max-age=31536000, immutable"} if version == self._version else {}
        return Response(self._static[name], media_type=STATIC[name], headers=kept)

    def _closed(self) -> Response:
        if self._auth is None:
            return PlainTextResponse("You may not see this.", 403)
        return PlainTextResponse(
            "Open the address that headrace web has printed, with its token. It is good as long as that runs.",
            403,
        )

    def _error(
        self, request: Request, status: int, text: str, rights: Rights, *, retry: bool = False
    ) -> Response:
        values = {
            "status": status,
            "text": text,
            "retry_s": 5 if retry else 0,  # a page reloads itself, without JavaScript
            **self._common(request, rights),
        }
        return render("error.html", values, status)

    def _common(self, request: Request, rights: Rights, outcome: str = "") -> dict[str, Any]:
        scheme = request.cookies.get("headrace_scheme", "")  # light or dark, as was chosen
        up = "../" * _name_of(request).count("/")
        return {
            "may": rights.may,
            "sees": rights.sees,
            "namespace": self._namespace,
            "server": self._server_text(rights),
            "scheme": scheme if scheme in ("light", "dark") else "",
            "outcome": outcome,
            "here": "-",
            "crumbs": (),
            "ask": request.query_params.get("ask", ""),
            "without_ask": without_ask(_name_of(request), request),
            "up": up,
            "namespaces": addresses(self._namespaces, self._namespace, up),
            "pages": PAGES,
        }

    def _server_text(self, rights: Rights) -> str:
        if self._inspector is None or not rights.sees("*"):
            return ""
        known = self._inspector.views.server
        return known.place() if known.facts is None else known.facts.text

    async def _page(self, name: str, request: Request, rights: Rights) -> Response:
        wanted = PageRequest(request, rights, self._reader(), self._trace_url)
        try:
            async with asyncio.timeout(PAGE_WITHIN_S):
                found = await PAGES[name](wanted)
        except TimeoutError as error:
            raise TimeoutError(
                str(error) or f"this page was not read within {PAGE_WITHIN_S:g} s"
            ) from None
        if isinstance(found, Response):
            return found
        template, values = found
        outcome = self._outcome(wanted.param("outcome"), name, request)
        common = self._common(request, rights, outcome)
        more = {"here": name, "crumbs": crumbs(name, wanted.param)}
        return render(template, {**common, **more, **values})

    def _outcome(self, token: str, name: str, request: Request) -> str:
        """Return the outcome that *token* names, or '' if another browser took that action, or
        another page follows it.
        """
        known = self._outcomes.get(token)
        if (
            known is None
            or request.method != "GET"
            or known.place != _place_of(f"{name}?{request.url.query}")
        ):
            return ""
        if not secrets.compare_digest(known.visitor.encode(), visitor_of(request).encode()):
            return ""
        del self._outcomes[token]
        return known.text

    # -- acting ------------------------------------------------------------------------------------

    async def _act(self, action: str, request: Request, rights: Rights) -> Response:
        if not is_same_origin(request):
            return self._error(
                request, 403, "This did not come from these pages, so nothing was done.", rights
            )
        # Rows have an address of their own. Programs that know no ticks must not take a form
        # without an id for all jobs.
        form = await _form_of(request, ticked=action == "ticked")
        if form.ticked is not None:
            action = form.required("action")
        if action not in CALLS:
            return self._error(request, 404, "There is no such action.", rights)
        name = form.required("queue")
        if not rights.may(name, action):
            return self._error(
                request, 403, f"You may not {action.replace('_', ' ')} in {name}.", rights
            )
        number, text, onward = await act(
            self._reader(), self._server, self._namespace, action, name, form
        )
        by = _who(request)
        log_event(
            "web_action",
            "%s in %s by %s: %s",
            action,
            name,
            by,
            text,
            queue=name,
            action=action,
            by=by,
            number=number,
        )
        outcome = secrets.token_urlsafe(9)
        ticked = form.ticked is not None
        following = (
            _after_ticks(form, outcome) if ticked else _after(action, form, outcome, onward, number)
        )
        answer = RedirectResponse(following, 303)
        self._outcomes[outcome] = Outcome(text, introduce(request, answer), _place_of(following))
        if len(self._outcomes) > 500:  # kept until they are shown
            self._outcomes.popitem(last=False)
        return answer


def _name_of(request: Request) -> str:
    return (
        str(request.scope["path"]).removeprefix(str(request.scope.get("root_path", ""))).strip("/")
    )


def _status(error: Exception) -> int:
    if isinstance(error, NotThere):
        return 404
    unreachable = isinstance(error, (redis.RedisError, OSError)) and not isinstance(
        error, redis.ResponseError
    )
    return 503 if unreachable else 400


def _who(request: Request) -> str:
    user = request.scope.get("user")
    named = str(getattr(user, "display_name", "") or getattr(user, "username", "") or "")
    address = request.client.host if request.client else "unknown"
    return f"{named} at {address}" if named else address


async def _form_of(request: Request, *, ticked: bool) -> Form:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Refused("This is no form.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES:
            raise Refused(f"The form has more than {FORM_BYTES:,} bytes.")
    try:
        pairs = parse_qsl(
            bytes(body).decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=50
        )
    except ValueError as error:  # UnicodeDecodeError, too
        raise Refused("The form can't be read.") from error
    return Form(
        dict(pairs), tuple(value for name, value in pairs if name == "id") if ticked else None
    )


def _place_of(address: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    parts = urlsplit(address)
    asked = parse_qsl(parts.query, keep_blank_values=True)
    return parts.path.strip("./"), tuple(sorted(pair for pair in asked if pair[0] != "outcome"))


def _after(action: str, form: Form, outcome: str, onward: Mapping[str, str], number: int) -> str:
    queue = form("queue")
    job = form("id")
    if onward:
        return "../" + to("matching", **{"name": queue, "outcome": outcome, **onward})
    pages = {
        "job": {"queue": queue, "id": job},
        "run": {"flow": form("flow"), "id": job},
        "tenants": {},
    }
    asked = "job" if job and action in ("expire", "reschedule", "signal") else form("page")
    if asked in pages and (job or asked == "tenants"):
        return "../" + to(asked, **pages[asked], outcome=outcome)
    if action in ("redrive", "purge_dead") and (form("group") or not form("state")):
        tried = (
            {"group": form("group"), "queue": queue, "tried": job}
            if job and action == "redrive"
            else {}
        )
        return "../" + to(
            "dead", name=form("within") if form("group") else queue, outcome=outcome, **tried
        )
    if form("state"):
        return "../" + to("queue", name=queue, state=form("state"), outcome=outcome)
    if action in ("delete", "unschedule"):
        return "../" + to("" if action == "delete" else "schedules", outcome=outcome).removeprefix(
            "./"
        )
    of_schedule = VERBS[action].command.startswith("schedules")
    page = (
        ("schedule", {"queue": queue, "name": form("name")})
        if of_schedule
        else ("queue", {"name": queue})
    )
    if action in ("quiet_worker", "resume_worker") and number:
        page = ("worker", {"queue": queue, "name": form("worker")})
    found = {"mend": "1"} if action == "repair" and form("show") and number else {}
    return "../" + to(page[0], **page[1], outcome=outcome, **found)


def _after_ticks(form: Form, outcome: str) -> str:
    if form("group"):
        return "../" + to("dead", name=form("within"), group=form("group"), outcome=outcome)
    kept = {name: form(name) for name in ("state", "cursor", *FILTERS)}
    return "../" + to("queue", name=form("queue"), outcome=outcome, **kept)


def app(
    url_or_client: str | AsyncClient | None = None,
    *,
    namespace: str | Sequence[str] = "headrace",
    access: Access | None = None,
    redact: Redact | None = None,
    codecs: Mapping[str, Codec[Any]] | None = None,
    trace_url: str = "",
) -> Callable[[Scope, Receive, Send], Any]:
    """Make the pages of a namespace, or of several, as an ASGI application to mount in yours, or to
    run by itself.

    - *url_or_client*: a URL as for `Queue`, or a `redis.asyncio.Redis`; else the server that the
      environment names.
    - *namespace*: of several, the first is at the root, each other below `@name/`. A rule of access
      tells them apart by `request.scope["headrace.namespace"]`.
    - *access*: a function of the request (a `starlette.requests.Request`; it may be async) that
      answers which queues and actions it may use: `None`, `"read"`, a set of names of actions, or a
      mapping from queues to one of these, in which `"*"` stands for all others. A queue that is not
      named is not shown. Without *access*, everything is shown, and no action is allowed.
    - *redact*, *codecs*: as for `headrace.inspect.Inspector`. *trace_url*: where a trace is to be
      seen, with `{trace_id}` in it.

    Nothing is read unless a page is open, and then once for all viewers. Each action is logged
    (`web_action`).
    """
    if access is not None and not callable(access):
        raise TypeError(f"access must be a function of the request, not {type(access).__name__}")
    kind = "url" if isinstance(url_or_client, str) or url_or_client is None else "client"
    names = [namespace] if isinstance(namespace, str) else namespace
    return pages_of({kind: url_or_client}, names, access, redact, codecs, trace_url)


def pages_of(
    server: dict[str, Any],
    names: Sequence[str],
    access: Access | None,
    redact: Redact | None,
    codecs: Mapping[str, Codec[Any]] | None = None,
    trace_url: str = "",
    auth: TokenAuth | None = None,
) -> Pages | Namespaces:
    every = tuple(dict.fromkeys(names))
    if not every:
        raise ConfigurationError("namespace: give at least one")
    for name in every:
        check_names(namespace=name)
    sites = {
        name: Pages(server, name, access, redact, codecs, trace_url, auth, every) for name in every
    }
    return sites[every[0]] if len(every) == 1 else Namespaces(sites)
