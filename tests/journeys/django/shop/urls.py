from django.urls import path

from shop import views

urlpatterns = [
    path("orders/<str:item>/place", views.place),
    path("orders/<int:pk>", views.show),
]
