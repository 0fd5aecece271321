"""Outbox and inbox: jobs that are in a transaction of SQL, and effects of a job that happen once. Extra `sql`."""
