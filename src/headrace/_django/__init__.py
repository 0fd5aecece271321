"""`headrace.django`: Django's tasks on headrace, workers of them, and the pages in Django's admin."""
