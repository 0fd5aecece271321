"""The settings and addresses of a Django project, for these tests and for those that mount the
pages in Django."""

from __future__ import annotations

import atexit
import importlib.util
import shutil
import tempfile
from typing import Any

_folder = tempfile.mkdtemp(prefix="headrace-django-")  # one for each test process
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
SECRET_KEY = "of no use"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
ROOT_URLCONF = "tests.django.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "headrace.django",
]
if importlib.util.find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES: dict[str, Any] = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{_folder}/db",
        "OPTIONS": {"timeout": 20},
    }
}
TASKS: dict[str, Any] = {  # tests override it; with it, tasks are of the backend's class
    "default": {"BACKEND": "headrace.django.TaskBackend", "QUEUES": ["default", "mail"]}
}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
