from django.db import models
from wagtail.models import Page


class Article(Page):
    related = models.ForeignKey(Page, null=True, on_delete=models.SET_NULL, related_name="+")
