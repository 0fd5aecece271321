"""A model without a table: with it, Django's admin has an entry for the pages, and permissions for them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

_models: Any = import_module("django.db.models")


class Queue(_models.Model):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """The queues, as the admin names them."""

    class Meta:
        """Its name and permissions: to view the pages, to act on them, and to remove jobs for good."""

        app_label = "headrace"
        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ("view", "change", "delete")
        verbose_name = "queue"
        verbose_name_plural = "queues"
