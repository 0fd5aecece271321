"""The entry in Django's admin, with the pages of all queues behind staff rights."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.django._pages import view
from headrace.django.models import Queue

_admin: Any = import_module("django.contrib.admin")
_urls: Any = import_module("django.urls")


@_admin.register(Queue)  # pyright: ignore[reportUntypedClassDecorator]
class QueueAdmin(_admin.ModelAdmin):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    def get_urls(self) -> list[Any]:
        """Return the addresses of the pages, each behind the admin's own door."""
        door = self.admin_site.admin_view(view)
        list_ = _urls.path("", door, {"path": ""}, name="headrace_queue_changelist")
        return [list_, _urls.path("<path:path>", door, name="headrace_queue_pages")]

    def has_add_permission(self, request: Any) -> bool:  # noqa: ARG002 - as Django calls it
        return False
