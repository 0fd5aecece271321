"""The databases for which there is a page of SQL, and the page, for tables in any schema.

Django's migration reads it, too, without SQLAlchemy.
"""

from __future__ import annotations

import re
from importlib.resources import files

from headrace.errors import ConfigurationError
from headrace.platform import checks

DIALECTS = ("postgresql", "sqlite")
TABLES = ("headrace_outbox", "headrace_inbox")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")  # of a schema, as PostgreSQL takes it in quotes
# where a statement of the page names a table
TABLE_OF = re.compile(r"\b(CREATE TABLE|ON) (headrace_[a-z]+)(?= \()")
# Whoever may create no schema may use one that is there; CREATE SCHEMA IF NOT EXISTS would refuse
# that.
SCHEMA = (
    """DO $$BEGIN IF to_regnamespace('"{0}"') IS NULL THEN CREATE SCHEMA "{0}"; END IF; END$$"""
)


def require_dialect(dialect: str, schema: str | None = None) -> None:
    """Refuse a database for which there is no page, and a *schema* in one that has none."""
    if dialect not in DIALECTS:
        raise ConfigurationError(
            f"headrace.sql knows {' and '.join(DIALECTS)}; this is a database of {dialect!r}"
        )
    if schema is not None and dialect != "postgresql":
        raise ConfigurationError(
            f"schema={schema!r} is for PostgreSQL: leave it out for a database of {dialect!r}"
        )


def schema_name(schema: object) -> str | None:
    """Check the name of a schema. `None` is the first of the session's search path that has the
    tables.
    """
    if schema is None:
        return None
    name = checks.text("schema", schema)
    if not NAME.fullmatch(name):
        raise ValueError(
            f"schema={name!r}: give a name of letters, digits and _, 63 at most, no digit first"
        )
    return name


def table_name(table: str, schema: str | None) -> str:
    return table if schema is None else f'"{schema}".{table}'


def page(dialect: str, schema: str | None = None) -> str:
    require_dialect(dialect, schema_name(schema))
    text = files("headrace.sql").joinpath(f"{dialect}.sql").read_text("utf-8")
    if schema is None:
        return text
    named = TABLE_OF.sub(lambda found: f"{found[1]} {table_name(found[2], schema)}", text)
    return f"{SCHEMA.format(schema)};\n\n{named}"


def statements(dialect: str, schema: str | None = None) -> list[str]:
    plain = re.sub(r" *--.*", "", page(dialect, schema))
    return [one.strip() for one in plain.split(";\n") if one.strip()]


def drops(schema: str | None = None) -> list[str]:
    return [f"DROP TABLE {table_name(table, schema)}" for table in TABLES]
