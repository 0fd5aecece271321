from django.urls import include, path

urlpatterns = [
    path("cms/", include("wagtail.admin.urls")),
    path("documents/", include("wagtail.documents.urls")),
]
