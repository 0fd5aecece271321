"""The tables of the outbox and the inbox, on PostgreSQL and SQLite, and the entry in the admin."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import Any, ClassVar

_migrations: Any = import_module("django.db.migrations")
_models: Any = import_module("django.db.models")
TABLES = ("headrace_outbox", "headrace_inbox")


def create(_apps: Any, editor: Any) -> None:
    """Create the tables. Another database has no outbox."""
    page = files("headrace._sql").joinpath(f"{editor.connection.vendor}.sql")
    if page.is_file():
        lines = [line.partition("--")[0] for line in page.read_text("utf-8").splitlines()]
        for statement in filter(str.strip, "\n".join(lines).split(";")):
            editor.execute(statement)


def drop(_apps: Any, editor: Any) -> None:
    """Drop the tables."""
    for table in TABLES:
        editor.execute(f"DROP TABLE IF EXISTS {table}")


class Migration(_migrations.Migration):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Create the tables."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        _migrations.RunPython(create, drop),
        _migrations.CreateModel(
            "Queue",
            [("id", _models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))],
            {
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "managed": False,
                "default_permissions": ("view", "change", "delete"),
            },
        ),
    ]
