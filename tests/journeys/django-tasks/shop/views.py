from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from shop import tasks
from shop.models import Order


@require_POST
@transaction.atomic
def place(request: HttpRequest, item: str) -> JsonResponse:
    order = Order.objects.create(item=item)
    result = tasks.invoice.enqueue(order.pk)
    tasks.mail.enqueue(order.pk)
    if item == "unicorn":
        raise ValueError("out of stock")  # rolled back: no order, and no task
    return JsonResponse({"order": order.pk, "result": result.id}, status=202)


def show(request: HttpRequest, pk: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=pk)
    return JsonResponse({"invoice": order.invoice, "mails": order.mails})


def result(request: HttpRequest, id: str) -> JsonResponse:
    found = tasks.invoice.get_result(id)
    errors = [error.exception_class_path for error in found.errors]
    value = found.return_value if found.is_finished else None
    return JsonResponse(
        {"status": found.status, "value": value, "attempts": found.attempts, "errors": errors}
    )
