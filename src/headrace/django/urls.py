"""The pages below a prefix of yours, behind staff rights, for projects without Django's admin.

urlpatterns += [path("queues/", include("headrace.django.urls"))]
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.django._pages import view

_urls: Any = import_module("django.urls")
_auth: Any = import_module("django.contrib.auth.decorators")

app_name = "headrace"


def _is_staff(user: Any) -> bool:
    return bool(user.is_active and user.is_staff)


_door: Any = _auth.user_passes_test(_is_staff)(view)
urlpatterns = [
    _urls.path("", _door, {"path": ""}, name="queues"),
    _urls.path("<path:path>", _door, name="page"),
]
