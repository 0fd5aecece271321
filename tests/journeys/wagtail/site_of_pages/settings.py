from pathlib import Path

BASE_DIR = Path(__file__).parents[1]
SECRET_KEY = "of no use"
ALLOWED_HOSTS = ["127.0.0.1"]
ROOT_URLCONF = "site_of_pages.urls"
USE_TZ = True
INSTALLED_APPS = [
    "site_of_pages",
    "headrace.django",
    "django_tasks",  # Wagtail's tasks are the backport's
    "wagtail.users",
    "wagtail.documents",
    "wagtail.images",
    "wagtail.search",
    "wagtail.admin",
    "wagtail",
    "modelcluster",
    "taggit",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
STATIC_URL = "/static/"
MEDIA_ROOT = BASE_DIR / "media"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "db.sqlite3",
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
WAGTAIL_SITE_NAME = "Pages"
WAGTAILADMIN_BASE_URL = "http://127.0.0.1"
TASKS = {
    "default": {
        "BACKEND": "headrace.django.TaskBackend",
        "OPTIONS": {"retry": {"attempts": 5, "wait": 0.1}},
    }
}
