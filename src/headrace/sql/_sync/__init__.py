"""The relay for threads, generated from `aio` by .ci/twins.py. `colour` is written by hand."""
