"""The databases for which there is a page of SQL."""

from __future__ import annotations

from headrace.errors import ConfigurationError

DIALECTS = ("postgresql", "sqlite")


def require_dialect(dialect: str) -> None:
    """Refuse a database for which there is no page."""
    if dialect not in DIALECTS:
        raise ConfigurationError(f"headrace.sql knows {' and '.join(DIALECTS)}; this is a database of {dialect!r}")
