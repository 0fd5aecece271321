"""Agents of pydantic-ai in the handlers of every kind of worker."""

from tests.agents.stage import stage
from tests.conftest import newest_queue as queue

__all__ = ["queue", "stage"]
