from collections.abc import Callable
from typing import Any

from django.db import close_old_connections
from headrace import Job, Queue, Worker

invoices = Queue("invoices")  # its server is named by the environment: HEADRACE_URL
worker = Worker()


@worker.middleware
def fresh_connections(job: Job, call: Callable[[], Any]) -> Any:
    # those that the database has closed meanwhile, as Django does around requests
    close_old_connections()
    try:
        return call()
    finally:
        close_old_connections()


@worker.handler(invoices, concurrency=4)
def invoice(job: Job) -> None:
    from shop.models import Order

    order = Order.objects.get(pk=int(job.payload))
    order.invoice = f"invoice {order.pk} for {order.item}"
    order.save(update_fields=["invoice"])
