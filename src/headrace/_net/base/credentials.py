"""Credentials of a user's provider. Its exceptions become errors of authentication, and the wait for it is short."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from redis import exceptions as errors
from redis.credentials import CredentialProvider

from headrace.errors import describe_error

ANSWER_WITHIN_S = 5.0  # seconds that a provider may take
Credentials = tuple[str] | tuple[str, str]
BOUNDS = threading.local()  # `within`: seconds of the call that this thread makes


class Guarded(CredentialProvider):
    """Asks a user's provider in a separate thread, once for each connection, unless the last question is still open.

    Raises `redis.AuthenticationError` for the provider's exceptions, and `redis.TimeoutError` if it takes too long.
    """

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        self._asked: Future[Credentials] | None = None
        self._pid = os.getpid()

    def get_credentials(self) -> Credentials:
        """Ask the provider."""
        asked = self.ask()
        within = min(ANSWER_WITHIN_S, getattr(BOUNDS, "within", None) or ANSWER_WITHIN_S)
        with suppress(TimeoutError):
            return self.checked(asked.exception(within), asked)
        raise late()

    def ask(self) -> Future[Credentials]:
        """Put the question, unless one is open."""
        asked = self._asked
        if asked is None or asked.done() or self._pid != os.getpid():  # a fork lacks the thread
            self._pid = os.getpid()
            self._asked = asked = Future[Credentials]()
            threading.Thread(target=self._answer, args=(asked,), name="headrace-credentials", daemon=True).start()
        return asked

    def _answer(self, asked: Future[Credentials]) -> None:
        try:
            given = self.theirs.get_credentials()
        except BaseException as error:
            asked.set_exception(error)
        else:
            asked.set_result(given)

    @staticmethod
    def checked(error: BaseException | None, asked: Future[Credentials]) -> Credentials:
        """Return the credentials. Raises `redis.AuthenticationError` for *error*."""
        if error is not None:
            raise failed(error) from error
        return asked.result()


def failed(error: BaseException) -> errors.AuthenticationError:
    """Return the error for a provider that raised *error*."""
    return errors.AuthenticationError(f"the credential provider has failed: {describe_error(error)}")


def late() -> errors.TimeoutError:
    """Return the error for a provider that takes too long."""
    return errors.TimeoutError("the credential provider has not answered in time")


def guarded(provider: Any) -> Any:
    """Return a provider that asks *provider* within bounds."""
    return provider if isinstance(provider, Guarded) else Guarded(provider)
