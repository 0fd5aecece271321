try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task

from django.db.models import F

from shop.models import Order


@task(takes_context=True)
def invoice(context, order: int) -> str:
    if context.attempt == 1:
        raise ConnectionError("the printer is off")  # the first attempt fails, and is retried
    text = f"invoice {order} for {Order.objects.get(pk=order).item}"
    Order.objects.filter(pk=order).update(invoice=text)
    return text


@task(backend="outbox", queue_name="mail", priority=50)
def mail(order: int) -> None:
    Order.objects.filter(pk=order).update(mails=F("mails") + 1)
