"""Models for the admin, and for the tables of the outbox and the inbox.

Models of the tables let Django's `flush` empty them, and with it its tests. One model has no table.
By it Django's admin has an entry for the pages, and permissions for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from headrace.django._tables import model_table

_models: Any = import_module("django.db.models")


class OfTable:
    """Options of models whose tables the migration creates by its own SQL."""

    app_label = "headrace"
    default_permissions = ()
    # of PostgreSQL and SQLite
    required_db_features: ClassVar[list[str]] = ["supports_partial_indexes"]


class OutboxRow(_models.Model):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """The rows of the outbox, which `headrace.sql` writes."""

    position = _models.BigAutoField(primary_key=True)
    version = _models.SmallIntegerField()
    namespace = _models.TextField()
    queue = _models.TextField()
    job_id = _models.TextField()
    payload = _models.BinaryField()
    headers = _models.TextField()
    priority = _models.SmallIntegerField()
    job_key = _models.TextField(null=True)
    delay_ms = _models.BigIntegerField(null=True)
    due_ms = _models.BigIntegerField(null=True)
    written_ms = _models.BigIntegerField()
    refused = _models.TextField(null=True)

    class Meta(OfTable):
        db_table = model_table("headrace_outbox")


class InboxRow(_models.Model):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """The rows of the inbox, which `headrace.sql` writes."""

    pk = _models.CompositePrimaryKey("queue", "job_id", "enqueued_ms")
    queue = _models.TextField()
    job_id = _models.TextField()
    enqueued_ms = _models.BigIntegerField()
    attempt = _models.IntegerField()
    version = _models.SmallIntegerField()
    done_ms = _models.BigIntegerField()

    class Meta(OfTable):
        db_table = model_table("headrace_inbox")


class NoRows(_models.Manager):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """A manager that asks no database, as there is no table, though `dumpdata` asks all models."""

    def get_queryset(self) -> Any:
        every: Any = super()
        return every.get_queryset().none()


class Queue(_models.Model):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    objects = NoRows()

    class Meta:
        """Its name, and its permissions to view the pages, to act on them, and to remove jobs for
        good.
        """

        app_label = "headrace"
        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "change", "delete")
        base_manager_name = "objects"
        verbose_name = "queue"
        verbose_name_plural = "queues"
