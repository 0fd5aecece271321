# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded,cli]", "django", "gunicorn"]
# ///
"""A Django project under gunicorn. A view enqueues when its transaction commits, and `headrace
work` fills the database.
"""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import closing

from programs import Program, ask, until

os.environ["HEADRACE_URL"] = "embedded:./data"
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"

for arguments in ("makemigrations shop", "migrate"):
    with Program("python", "manage.py", *arguments.split()) as manage:
        manage.ends()

# Two processes, forked once the queue has been imported.
with Program(
    "gunicorn", "shop.wsgi", "--bind", "127.0.0.1:0", "--workers", "2", "--preload"
) as web:
    found = re.search(r"http://\S+", web.says("Listening at: http"))
    assert found
    url = found[0]
    assert ask(f"{url}/orders/lamp/place", "POST") == (202, {"order": 1})
    assert ask(f"{url}/orders/unicorn/place", "POST")[0] == 500
    # nothing works yet, and nothing is lost
    assert ask(f"{url}/orders/1") == (200, {"invoice": ""})

    with Program("headrace", "work", "shop.jobs:worker", "--processes", "2") as worker:
        worker.says("INFO worker_started", "serves 'invoices' with shop.jobs.invoice, 4 at once")
        until(
            lambda: ask(f"{url}/orders/1")[1]["invoice"] == "invoice 1 for lamp",
            "the first invoice",
        )
        for n in range(20):
            assert ask(f"{url}/orders/chair-{n}/place", "POST")[0] == 202
        with Program("headrace", "drain", "invoices", "--timeout", "30") as drain:
            drain.ends()
        worker.stop()
    web.stop()

with closing(sqlite3.connect("db.sqlite3")) as database:
    rows = dict(database.execute("SELECT item, invoice FROM shop_order"))
assert len(rows) == 21 and "unicorn" not in rows, rows
assert all(invoice.endswith(f" for {item}") for item, invoice in rows.items()), rows
with Program("headrace", "stats", "invoices", "--json") as stats:
    said = stats.ends()
assert '"enqueued": 21' in said and '"completed": 21' in said and '"lost": 0' in said, said
