"""The operation of a migration that creates the outbox and the inbox, and the schema in which they
are.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, cast

from headrace.sql import dialects

_operations: Any = import_module("django.db.migrations.operations.base")
_db: Any = import_module("django.db")


def schema() -> str | None:
    """Return the schema that `OPTIONS` of a backend names, or `None`. The check of backends reports
    a wrong name."""
    settings: Any = import_module("django.conf").settings
    entries: Any = getattr(settings, "TASKS", None)
    for entry in (
        cast("Mapping[str, Any]", entries).values() if isinstance(entries, Mapping) else ()
    ):
        options: Any = (
            cast("Mapping[str, Any]", entry).get("OPTIONS") if isinstance(entry, Mapping) else None
        )
        name: Any = (
            cast("Mapping[str, Any]", options).get("schema")
            if isinstance(options, Mapping)
            else None
        )
        if isinstance(name, str) and dialects.NAME.fullmatch(name):
            return name
    return None


def model_table(table: str) -> str:
    """Return the name of a table as models have it. Django puts quotes around it."""
    name = schema()
    return table if name is None else f'{name}"."{table}'


class CreateTables(_operations.Operation):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """Creates the tables, by the page of SQL of the database. A database without a page gets
    none."""

    reduces_to_sql = True
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change no state, as the models are operations of their own."""

    def database_forwards(self, app_label: str, schema_editor: Any, *_: Any) -> None:
        if _is_for(schema_editor.connection, app_label):
            _run(
                schema_editor,
                dialects.statements(schema_editor.connection.vendor, _schema_of(schema_editor)),
            )

    def database_backwards(self, app_label: str, schema_editor: Any, *_: Any) -> None:
        if _is_for(schema_editor.connection, app_label):
            _run(schema_editor, dialects.drops(_schema_of(schema_editor)))

    def describe(self) -> str:
        return "Create the tables of the outbox and the inbox"


def _is_for(connection: Any, app_label: str) -> bool:
    return connection.vendor in dialects.DIALECTS and bool(
        _db.router.allow_migrate(connection.alias, app_label)
    )


def _schema_of(editor: Any) -> str | None:
    return schema() if editor.connection.vendor == "postgresql" else None


def _run(editor: Any, statements: list[str]) -> None:
    for one in statements:
        editor.execute(one, None)
