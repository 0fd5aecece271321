# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[django,embedded]", "wagtail>=7.2", "django-tasks"]
# ///
"""A site on Wagtail whose own tasks run on headrace. They keep the index of references and remove
files."""

from __future__ import annotations

import os
from pathlib import Path

from programs import Program, until

os.environ["HEADRACE_URL"] = "embedded:./data"
os.environ["DJANGO_SETTINGS_MODULE"] = "site_of_pages.settings"

for arguments in ("makemigrations site_of_pages", "migrate", "check"):
    with Program("python", "manage.py", *arguments.split()) as manage:
        manage.ends()

import django

django.setup()

from django.core.files.base import ContentFile
from django.db import transaction
from wagtail.documents.models import Document
from wagtail.models import Page, ReferenceIndex

from site_of_pages.models import Article

root = Page.objects.get(depth=1)
target = root.add_child(instance=Page(title="Target"))
with transaction.atomic():
    article = root.add_child(instance=Article(title="An article", related=target))
    document = Document.objects.create(title="A file", file=ContentFile(b"text", "a.txt"))
    path = Path(document.file.path)
with transaction.atomic():
    root.add_child(instance=Article(title="Rolled back", related=target))
    transaction.set_rollback(True)
assert ReferenceIndex.get_references_to(target).count() == 0  # nothing works yet

with Program("python", "manage.py", "headrace_worker") as worker:
    until(lambda: ReferenceIndex.get_references_to(target).count() == 1, "the index of references")
    assert path.exists()
    with transaction.atomic():
        document.delete()
    until(lambda: not path.exists(), "the removal of the file")
    worker.stop()

with Program(
    "python", "manage.py", "headrace", "list", "default", "--state", "ended", "--json"
) as ended:
    said = ended.ends()
assert "wagtail.tasks.update_reference_index_task" in said
assert "wagtail.tasks.delete_file_from_storage_task" in said
with Program("python", "manage.py", "headrace", "stats", "default", "--json") as stats:
    said = stats.ends()
assert '"lost": 0' in said, said
