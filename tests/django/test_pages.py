"""The pages in Django's admin and below a prefix of the project. They need staff rights, under WSGI
and ASGI alike."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.asgi import get_asgi_application
from django.test import Client, override_settings

from headrace.console.web.render import static_files
from headrace.django import _contract as contract, _pages as pages
from tests.django import tasks
from tests.support.servers import Server

Make = Callable[..., Any]
SAME = {"sec-fetch-site": "same-origin"}


@pytest.fixture
def site(backend: Make, database: None) -> Any:
    """Make a backend with a waiting task, and return the pages of its server."""
    made = backend()
    tasks.note.enqueue("shown")
    yield made
    pages.close()


def client_of(*permissions: str, staff: bool = True, everything: bool = False) -> Client:
    user = User.objects.create_user("ada", password="x", is_staff=staff, is_superuser=everything)
    names = [name.removeprefix("headrace.") for name in permissions]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    client = Client(enforce_csrf_checks=True)  # as a browser meets it
    assert client.login(username="ada", password="x")
    return client


def test_the_admin_has_an_entry(site: Any) -> None:
    client = client_of(everything=True)
    index = client.get("/admin/")
    assert b"/admin/headrace/queue/" in index.content
    shown = client.get("/admin/headrace/queue/")
    assert shown.status_code == 200
    assert b'href="queue?name=default"' in shown.content
    assert "default-src 'none'" in shown["content-security-policy"]
    assert client.get("/admin/headrace/queue/queue?name=default").status_code == 200
    assert client.get("/admin/headrace/queue/nowhere").status_code == 404


def test_a_task_is_shown_with_its_arguments(site: Any) -> None:
    (state,) = site.queue("default").admin.waiting()
    shown = client_of("view_queue").get(
        f"/admin/headrace/queue/job?queue=default&id={state.job.id}"
    )
    assert b"tests.django.tasks.note" in shown.content
    assert b"shown" in shown.content


@pytest.mark.parametrize("path", ["/admin/headrace/queue/", "/queues/"])
def test_strangers_are_sent_to_log_in(site: Any, path: str) -> None:
    for client in (Client(), client_of("view_queue", staff=False)):
        answer = client.get(path)
        assert answer.status_code == 302
        assert "login" in answer["location"]


@pytest.mark.parametrize("path", ["/admin/headrace/queue/", "/queues/"])
def test_rights_are_permissions(site: Any, path: str) -> None:
    """Staff without a permission see nothing. There are three, to view, to act, and to remove jobs
    for good."""
    queue = site.queue("default")
    nobody = client_of()
    assert nobody.get(path).status_code == 403
    User.objects.all().delete()
    viewer = client_of("view_queue")
    assert viewer.get(path).status_code == 200
    assert (
        viewer.post(f"{path}do/pause", "queue=default", content_type=FORM, headers=SAME).status_code
        == 403
    )
    User.objects.all().delete()
    operator = client_of("view_queue", "change_queue")
    act(operator, f"{path}do/pause", queue="default")
    assert queue.admin.paused()
    refused = operator.post(
        f"{path}do/purge", "queue=default&confirm=default", content_type=FORM, headers=SAME
    )
    assert refused.status_code == 403
    User.objects.all().delete()
    owner = client_of("view_queue", "change_queue", "delete_queue")
    act(owner, f"{path}do/purge", queue="default", confirm="default")
    assert queue.counts().waiting == 0


FORM = "application/x-www-form-urlencoded"


def act(client: Client, path: str, **fields: str) -> None:
    """Press a button and return the page that follows."""
    body = "&".join(f"{name}={value}" for name, value in fields.items())
    done = client.post(path, body, content_type=FORM, headers=SAME)
    assert done.status_code == 303, done.content
    assert (
        client.get(path.rpartition("do/")[0] + done["location"].removeprefix("../")).status_code
        == 200
    )


def test_a_form_of_another_site_does_nothing(site: Any) -> None:
    owner = client_of(everything=True)
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://elsewhere"}, {}):
        refused = owner.post(
            "/admin/headrace/queue/do/pause", "queue=default", content_type=FORM, headers=headers
        )
        assert refused.status_code == 403
    assert not site.queue("default").admin.paused()


@pytest.mark.parametrize("path", ["/admin/headrace/queue/", "/queues/"])
def test_each_link_leads_to_where_it_is(site: Any, path: str) -> None:
    client = client_of(everything=True)
    for name in ("", "queue?name=default"):
        shown = client.get(path + name).content.decode()
        links = {unescape(link) for link in re.findall(r'(?:href|src)="([^"#]+)"', shown)}
        assert f"static/{static_files()[0]}/live.js" in links
        for link in links:
            answer = client.get(path + link.removeprefix("./"))
            assert answer.status_code == 200, link
            assert ("immutable" in answer["cache-control"]) == link.startswith("static/"), link


@pytest.mark.parametrize("path", ["/admin/headrace/queue/", "/queues/"])
def test_under_asgi(site: Any, path: str) -> None:
    client = client_of(everything=True)
    cookie = client.cookies["sessionid"].value
    sent: list[Any] = []
    received: list[bool] = []

    async def asked() -> None:
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "client": ("127.0.0.1", 1), "server": ("testserver", 80),
            "headers": [(b"host", b"testserver"), (b"cookie", f"sessionid={cookie}".encode())],
        }  # fmt: skip

        async def receive() -> Any:
            if received:
                await asyncio.Event().wait()
            received.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await get_asgi_application()(scope, receive, send)

    asyncio.run(asked())
    assert sent[0]["status"] == 200
    assert b'href="queue?name=default"' in b"".join(one.get("body", b"") for one in sent)


def test_without_a_backend_of_ours(
    site: Any, newest: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment names the server, or the setting does, with all else that `headrace.web.app`
    takes."""
    (state,) = site.queue("default").admin.waiting()
    job = f"/queues/job?queue=default&id={state.job.id}"
    client = client_of(everything=True)
    with override_settings(
        TASKS={"default": {"BACKEND": f"{contract.FIRST.package}.backends.dummy.DummyBackend"}}
    ):
        pages.close()
        shown = client.get(job)
        assert (shown.status_code, b"add HEADRACE_WEB" in shown.content) == (500, True)
        monkeypatch.setenv("HEADRACE_URL", newest.url)
        assert b"tests.django.tasks.note" in client.get(job).content
        monkeypatch.delenv("HEADRACE_URL")
        pages.close()
        options = {"url_or_client": newest.url, "redact": lambda what, text, job: f"no {what}"}
        with override_settings(HEADRACE_WEB=options):
            assert b"no payload" in client.get(job).content
            assert b"tests.django.tasks.note" not in client.get(job).content
