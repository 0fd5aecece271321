"""Parts that commands share, such as finding the server and the queue, importing objects, and
reporting failures.

Exit codes: 0 done, 1 failed, not there or nothing done, 2 wrong arguments or an unknown queue, 130
interrupted, 141 the reader of our output has gone.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import sys
from collections.abc import Container, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Unpack

import redis
from redis.backoff import ExponentialBackoff
from redis.exceptions import RedisClusterException
from redis.retry import Retry

from headrace import Queue
from headrace.console.texts import without_place
from headrace.errors import ConfigurationError, HeadraceError
from headrace.platform import (
    Address,
    Discovery,
    QueueOptions,
    check_names,
    client_of,
    given,
    log_lines,
    visible,
)

LAYOUT = "\n\t"  # characters that do not print, and may stay in a text of several lines
FAILED, WRONG, INTERRUPTED, UNREAD = 1, 2, 130, 141  # exit codes
_in_json = False


def say(text: str, level: str = "INFO", **fields: object) -> None:
    """Write one line for the user to standard error. In JSON it has these *fields*.

    A line that can't be written is dropped: its reader has gone, or the disk is full.
    """
    with suppress(OSError):
        _write(text, level, fields)


def _write(text: str, level: str, fields: dict[str, object]) -> None:
    if _in_json:
        record = logging.makeLogRecord(
            {"name": "headrace", "levelname": level, "msg": text, **fields}
        )
        sys.stderr.write(f"{log_lines('json').format(record)}\n")
    else:
        sys.stderr.write(f"headrace: {visible(text, keep=LAYOUT)}\n")
    sys.stderr.flush()


def drop_unwritten() -> None:
    """Drop output that standard error does not take. Otherwise Python would exit with another
    status because of it."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def say_in_json() -> None:
    global _in_json  # noqa: PLW0603 - the form of a whole process
    _in_json = True


def set_up(level: str, form: str) -> bool:
    if logging.getLogger("headrace").hasHandlers():
        return False
    handler = logging.StreamHandler()
    handler.setFormatter(log_lines(form))
    logging.root.addHandler(handler)
    logging.root.setLevel(level.upper())
    return True


@contextmanager
def reported() -> Generator[None, None, None]:
    """Turn errors into one line and an exit code, as a wrong address deserves no traceback."""
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
        say(as_typed(str(error), *_options()))
        raise SystemExit(WRONG) from None
    except (HeadraceError, redis.RedisError, OSError) as error:
        say(str(error) or type(error).__name__)
        raise SystemExit(FAILED) from None
    except ValueError as error:  # of an argument: nothing was sent
        say(as_typed(str(error), *_options()))
        raise SystemExit(WRONG) from None


def as_typed(message: str, options: Mapping[str, str], given: Container[str]) -> str:
    """Replace the names of arguments in an error of the library by the options that a user types.

    *options* maps each argument to its option. A value belongs to an option only if this one
    was *given*, because jobs in lines have values, too.
    """
    for name, typed in options.items():
        message = re.sub(rf"(?<![\w.(-]){name}=(?=$|[\s,;:)])", typed, message)
        if name in given:
            message = re.sub(rf"(?<![\w.(-]){name}=", f"{typed} ", message)
            message = re.sub(rf"^{name}(?=[ :])", typed, message)
    return message


def _options() -> tuple[dict[str, str], set[str]]:
    import typer  # here: the processes of a worker need none

    # typer has its own copy of click, or uses it
    package = typer.Context.__mro__[1].__module__.rpartition(".")[0]
    context: Any = importlib.import_module(f"{package}.globals").get_current_context(silent=True)
    found = (
        [one for one in context.command.params if one.opts[0].startswith("-")] if context else []
    )
    given = {
        one.name for one in found if context.get_parameter_source(one.name).name == "COMMANDLINE"
    }
    return {one.name: one.opts[0] for one in found}, given


@contextmanager
def terminated(code: int = 128 + signal.SIGTERM) -> Generator[None, None, None]:
    """Handle SIGTERM like Ctrl-C. The program cleans up, then ends with this exit code."""

    def interrupt(_number: int, _frame: object) -> None:
        raise SystemExit(code)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def server(url: str | None) -> str:
    return given(url, "give --url", "")


@contextmanager
def connected(url: str) -> Generator[redis.Redis, None, None]:
    """Yield a client of the server at *url*, embedded ones too, once it has answered. Its errors
    name the server."""
    with ExitStack() as stack:
        options: dict[str, Any] = {"retry": Retry(ExponentialBackoff(cap=0.5, base=0.05), 3)}
        address = Address(url)
        name = address.shown
        stack.callback(address.leave)
        url = address.join() or url
        if not url.startswith("unix:"):
            # an operating system waits minutes for a host that is silent
            options["socket_connect_timeout"] = 5.0
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
            raise HeadraceError(f"{name}: {without_place(str(error))}") from error


def nodes_of(client: Any) -> Iterator[tuple[Any, str]]:
    """Yield a client of each primary. In a cluster it has the node's name, and else an empty
    one."""
    if not isinstance(client, redis.RedisCluster):
        yield client, ""
        return
    every: Any = client  # half annotated
    for node in every.get_primaries():
        yield every.get_redis_connection(node), node.name


def remove_namespace(client: redis.Redis, namespace: str) -> None:
    keys: Any = client  # scan_iter is half annotated
    try:
        for key in list(keys.scan_iter(f"{namespace}:*", count=1000)):
            keys.unlink(key)
    except (redis.RedisError, RedisClusterException) as error:
        say(f"the keys of this command, {namespace}:*, could not be removed: {error}")


# -- the queue that a command names ----------------------------------------------------------------


def open_queue(
    client: redis.Redis,
    name: str,
    namespace: str,
    *,
    create: bool | None = None,
    new_levels: int = 1,
    **options: Unpack[QueueOptions],
) -> Queue:
    """Open the queue with its shards, and as many priority levels as it has, or as are asked for,
    if that is more.

    Raises `ConfigurationError` for a queue that does not exist, unless *create* (`None`: the
    command can't); a new one has *new_levels* levels, or more.
    """
    levels = options.get("priorities", 1)
    if not require(client, name, namespace, create=create):
        levels = max(new_levels, levels)
    options["shards"] = Discovery(client, namespace).shards(name)
    with Queue(name, client=client, namespace=namespace, shards=options["shards"]) as plain:
        options["priorities"] = max(plain.admin.levels(), levels)
    return Queue(name, client=client, namespace=namespace, **options)


@contextmanager
def opened(
    name: str, url: str | None, namespace: str, **options: Any
) -> Generator[Queue, None, None]:
    check_names(name, namespace)
    with connected(server(url)) as client, open_queue(client, name, namespace, **options) as queue:
        yield queue


def require(client: redis.Redis, name: str, namespace: str, *, create: bool | None = None) -> bool:
    """Tell whether there is a queue of that name. If there must be one, raise `ConfigurationError`,
    which names the nearest.
    """
    found = Discovery(client, namespace)
    if found.has(name):
        return True
    if create:
        return False
    names: set[str] = set()
    with suppress(redis.ResponseError):  # a user that may not SCAN
        names |= set(found.names(10_000))  # keys, for the name that was meant
    near = get_close_matches(name, names, 1)
    meant = f", did you mean {near[0]}?" if near else f" in namespace {namespace}"
    raise ConfigurationError(
        f"there is no queue {name}{meant}" + ("" if create is None else " (--create makes it)")
    )


# -- arguments -------------------------------------------------------------------------------------


def bytes_of(argument: str) -> bytes:
    return argument.encode("utf-8", "surrogateescape")


def path_of(argument: str) -> Path:
    return Path(os.fsdecode(bytes_of(argument)))


# -- objects that a command names ------------------------------------------------------------------


def module_of(target: str, example: str) -> tuple[Any, str]:
    """Import the module of a *target* such as `app:worker`. Return it, and the name behind the
    colon.

    Raises `ConfigurationError`.
    """
    name, _, path = target.partition(":")
    if not name or not path:
        raise ConfigurationError(f"give MODULE:NAME, such as app:{example}")
    if name.endswith(".py") or "/" in name:
        raise ConfigurationError(f"give the name of a module, such as app:{example}, not of a file")
    sys.path.insert(0, str(Path.cwd()))
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        _set_up_django()
    try:
        return importlib.import_module(name), path
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"no module {error.name!r} in {sys.path[0]} or on Python's path"
        ) from None
    except SystemExit as error:
        raise ConfigurationError(
            f"module {name!r} ends the program as it is imported: SystemExit({error.code!r})"
        ) from None


def _set_up_django() -> None:
    try:
        django: Any = importlib.import_module("django")
    except ModuleNotFoundError as error:
        if error.name != "django":
            raise
        return
    django.setup()
