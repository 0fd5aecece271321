from django.db import close_old_connections
from headrace import Job, Queue, Worker

invoices = Queue("invoices")  # its server is named by the environment: HEADRACE_URL
worker = Worker()


@worker.handler(invoices, concurrency=4)
def invoice(job: Job) -> None:
    from shop.models import Order

    close_old_connections()  # one that the database has closed meanwhile, as Django does before each request
    order = Order.objects.get(pk=int(job.payload))
    order.invoice = f"invoice {order.pk} for {order.item}"
    order.save(update_fields=["invoice"])
