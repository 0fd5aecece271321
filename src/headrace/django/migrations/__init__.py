"""Migrations: the tables of `headrace.sql`."""
