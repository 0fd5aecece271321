# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[django,embedded,sql]", "gunicorn"]
# ///
"""A Django project with headrace's task backend under gunicorn. It enqueues on commit and by an
outbox, and has results and the admin.
"""

from __future__ import annotations

import http.cookiejar
import os
import re
import sqlite3
import urllib.error
import urllib.parse
import urllib.request
from contextlib import closing

from programs import Program, ask, until

os.environ["HEADRACE_URL"] = "embedded:./data"
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
os.environ["DJANGO_SUPERUSER_PASSWORD"] = "secret"


def counts(queue: str) -> str:
    """Return the counts of a queue, as JSON."""
    with Program("python", "manage.py", "headrace", "stats", queue, "--json") as stats:
        return stats.ends()


for arguments in (
    "makemigrations shop",
    "migrate",
    "check --database default --fail-level WARNING",
    "createsuperuser --noinput --username ada --email ada@example.org",
):
    with Program("python", "manage.py", *arguments.split()) as manage:
        manage.ends()

with Program("gunicorn", "shop.wsgi", "--bind", "127.0.0.1:0", "--workers", "2") as web:
    found = re.search(r"http://\S+", web.says("Listening at: http"))
    assert found
    url = found[0]
    status, placed = ask(f"{url}/orders/lamp/place", "POST")
    assert (status, placed["order"]) == (202, 1)
    assert ask(f"{url}/orders/unicorn/place", "POST")[0] == 500
    waiting = {"status": "READY", "value": None, "attempts": 0, "errors": []}
    assert ask(f"{url}/results/{placed['result']}") == (200, waiting)

    with (
        Program("python", "manage.py", "headrace_worker", "--processes", "2") as worker,
        Program("python", "manage.py", "headrace_worker", "--backend", "outbox") as mails,
    ):
        worker.says("INFO worker_started", "serves 'default'")
        until(
            lambda: ask(f"{url}/orders/1")[1] == {"invoice": "invoice 1 for lamp", "mails": 1},
            "the first order",
        )
        done = until(
            lambda: (said := ask(f"{url}/results/{placed['result']}")[1])["value"] and said,
            "its result",
        )
        assert done == {
            "status": "SUCCESSFUL",
            "value": "invoice 1 for lamp",
            "attempts": 2,
            "errors": ["builtins.ConnectionError"],
        }
        for n in range(10):
            assert ask(f"{url}/orders/chair-{n}/place", "POST")[0] == 202
        for queue in ("default", "mail"):
            until(lambda queue=queue: '"completed": 11' in counts(queue), "all tasks")
        mails.stop()
        worker.stop()

    # The pages are in the admin, for staff only.
    try:
        browser = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        )
        login = browser.open(f"{url}/admin/headrace/queue/")
        assert "/admin/login/" in login.url
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', login.read().decode())
        assert token
        form = {"username": "ada", "password": "secret", "csrfmiddlewaretoken": token[1]}
        request = urllib.request.Request(
            login.url, urllib.parse.urlencode(form).encode(), {"Referer": login.url}
        )
        pages = browser.open(request)
        assert pages.url == f"{url}/admin/headrace/queue/", pages.url
        assert 'href="queue?name=mail"' in pages.read().decode()
        ended = (
            browser.open(f"{pages.url}queue?name=default&state=ended&kind=shop.tasks.invoice")
            .read()
            .decode()
        )
        assert ended.count('href="job?') == 11
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read().decode()) from error
    web.stop()

with closing(sqlite3.connect("db.sqlite3")) as database:
    rows = database.execute("SELECT item, invoice, mails FROM shop_order").fetchall()
    assert database.execute("SELECT COUNT(*) FROM headrace_outbox").fetchone() == (0,)
assert len(rows) == 11, rows
assert all(invoice.endswith(f" for {item}") and mails == 1 for item, invoice, mails in rows), rows
