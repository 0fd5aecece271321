"""The app of Django, with migrations, commands, checks, and an entry in the admin."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.django._backend import missing_table

_apps: Any = import_module("django.apps")
_checks: Any = import_module("django.core.checks")


class HeadraceConfig(_apps.AppConfig):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    """The app that `"headrace.django"` in `INSTALLED_APPS` installs."""

    name = "headrace.django"
    label = "headrace"
    verbose_name = "Headrace"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        _checks.register(missing_table, _checks.Tags.database)
