from django.db import models


class Order(models.Model):
    item = models.CharField(max_length=100)
    invoice = models.CharField(max_length=100, blank=True)
    mails = models.IntegerField(default=0)
