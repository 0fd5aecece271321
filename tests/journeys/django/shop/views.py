from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from shop.jobs import invoices
from shop.models import Order


@require_POST
@transaction.atomic
def place(request: HttpRequest, item: str) -> JsonResponse:
    order = Order.objects.create(item=item)

    def send() -> None:
        invoices.enqueue(str(order.pk), id=f"order-{order.pk}", timeout=2)

    transaction.on_commit(send, robust=True)
    if item == "unicorn":
        raise ValueError("out of stock")  # rolled back: no order, and no job
    return JsonResponse({"order": order.pk}, status=202)


def show(request: HttpRequest, pk: int) -> JsonResponse:
    return JsonResponse({"invoice": get_object_or_404(Order, pk=pk).invoice})
