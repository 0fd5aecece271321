from django.contrib import admin
from django.urls import path

from shop import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/<str:item>/place", views.place),
    path("orders/<int:pk>", views.show),
    path("results/<str:id>", views.result),
]
