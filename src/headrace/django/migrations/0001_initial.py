"""The tables of the outbox and the inbox, on PostgreSQL and SQLite, and the entry in the admin."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from headrace.django._tables import CreateTables, model_table

_migrations: Any = import_module("django.db.migrations")
_models: Any = import_module("django.db.models")


class Migration(_migrations.Migration):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Any]] = [
        _migrations.SeparateDatabaseAndState(
            [CreateTables()],
            [
                _migrations.CreateModel(
                    "OutboxRow",
                    [
                        ("position", _models.BigAutoField(primary_key=True, serialize=False)),
                        ("version", _models.SmallIntegerField()),
                        ("namespace", _models.TextField()),
                        ("queue", _models.TextField()),
                        ("job_id", _models.TextField()),
                        ("payload", _models.BinaryField()),
                        ("headers", _models.TextField()),
                        ("priority", _models.SmallIntegerField()),
                        ("job_key", _models.TextField(null=True)),
                        ("delay_ms", _models.BigIntegerField(null=True)),
                        ("due_ms", _models.BigIntegerField(null=True)),
                        ("written_ms", _models.BigIntegerField()),
                        ("refused", _models.TextField(null=True)),
                    ],
                    {
                        "db_table": model_table("headrace_outbox"),
                        "default_permissions": (),
                        "required_db_features": ["supports_partial_indexes"],
                    },
                ),
                _migrations.CreateModel(
                    "InboxRow",
                    [
                        (
                            "pk",
                            _models.CompositePrimaryKey(
                                "queue",
                                "job_id",
                                "enqueued_ms",
                                blank=True,
                                editable=False,
                                primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("queue", _models.TextField()),
                        ("job_id", _models.TextField()),
                        ("enqueued_ms", _models.BigIntegerField()),
                        ("attempt", _models.IntegerField()),
                        ("version", _models.SmallIntegerField()),
                        ("done_ms", _models.BigIntegerField()),
                    ],
                    {
                        "db_table": model_table("headrace_inbox"),
                        "default_permissions": (),
                        "required_db_features": ["supports_partial_indexes"],
                    },
                ),
            ],
        ),
        _migrations.CreateModel(
            "Queue",
            [
                (
                    "id",
                    _models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                )
            ],
            {
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "managed": False,
                "default_permissions": ("view", "change", "delete"),
                "base_manager_name": "objects",
            },
        ),
    ]
