"""Parts that commands share: finding the server, reporting failures.

Exit codes: 0 done, 1 failed, not there or nothing done, 2 wrong arguments or an unknown queue, 130 interrupted, 141 the
reader of our output has gone.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from headrace._model.views import LAYOUT, visible
from headrace._net.base.address import Address, given, shown
from headrace._net.sync.cluster import client_of, executor_of
from headrace._net.sync.executor import meet
from headrace._telemetry.lines import JsonLines
from headrace.errors import ConfigurationError, HeadraceError

FAILED, WRONG, INTERRUPTED, UNREAD = 1, 2, 130, 141  # exit codes
_in_json = False
CONNECT_WITHIN_S = 5.0  # seconds; an operating system waits minutes for a host that is silent


def say(text: str, level: str = "INFO", **fields: object) -> None:
    """Write one line for the user to standard error; as JSON, where that was asked for, it has these *fields*, too.

    A line that can't be written is dropped: its reader has gone, or the disk is full.
    """
    with suppress(OSError):
        _write(text, level, fields)


def _write(text: str, level: str, fields: dict[str, object]) -> None:
    if _in_json:
        record = logging.makeLogRecord({"name": "headrace", "levelname": level, "msg": text, **fields})
        sys.stderr.write(f"{JsonLines().format(record)}\n")
    else:
        sys.stderr.write(f"headrace: {visible(text, keep=LAYOUT)}\n")
    sys.stderr.flush()


def drop_unwritten() -> None:
    """Drop output that standard error does not take. Otherwise Python would exit with another status because of it."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def say_in_json() -> None:
    """Make all lines of `say` JSON objects from now on."""
    global _in_json  # noqa: PLW0603 - the form of a whole process
    _in_json = True


@contextmanager
def reported() -> Generator[None, None, None]:
    """Turn errors into one line and an exit code: a wrong address deserves no traceback."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        raise SystemExit(UNREAD) from None
    except KeyboardInterrupt:
        say("interrupted")
        raise SystemExit(INTERRUPTED) from None
    except ConfigurationError as error:
        say(str(error))
        raise SystemExit(WRONG) from None
    except (HeadraceError, redis.RedisError, OSError) as error:
        say(str(error) or type(error).__name__)
        raise SystemExit(FAILED) from None
    except ValueError as error:  # of an argument: nothing was sent
        say(str(error))
        raise SystemExit(WRONG) from None


@contextmanager
def terminated() -> Generator[None, None, None]:
    """Handle SIGTERM like Ctrl-C: clean up, then end."""

    def interrupt(_number: int, _frame: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def server(url: str | None) -> str:
    """Return the URL to use: *url*, or else the environment's."""
    return given(url, "give --url", "")


@contextmanager
def connected(url: str) -> Generator[redis.Redis, None, None]:
    """Yield a client of the server at *url*, embedded ones too, once it has answered. Its errors name the server."""
    with ExitStack() as stack:
        name = shown(url)
        options: dict[str, Any] = {"retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), 3)}
        address = Address(url)
        stack.callback(address.leave)
        url = address.join() or url
        if not url.startswith("unix:"):
            options["socket_connect_timeout"] = CONNECT_WITHIN_S
        try:
            client: redis.Redis = stack.enter_context(client_of(url, **options))
        except redis.RedisError as error:  # a cluster's is made by asking
            raise HeadraceError(f"{name}: {error}") from error
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from error
        try:
            client.ping()  # pyright: ignore[reportUnknownMemberType]
            yield client
        except (redis.RedisError, RedisClusterException) as error:
            raise HeadraceError(f"{name}: {error}") from error


@contextmanager
def reached(url: str) -> Generator[None, None, None]:
    """Check that there is a server at *url*, even if it loads or hangs. An embedded one runs as long as the context."""
    name = shown(url)
    with ExitStack() as stack:
        address = Address(url)
        stack.callback(address.leave)
        try:
            executor = executor_of(address.join())
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from error
        try:
            meet(executor)
        except (redis.RedisError, OSError) as error:
            raise HeadraceError(f"{name}: {error}") from error
        finally:
            executor.close()
        yield
