"""Migrations for the tables of `headrace.sql`."""
