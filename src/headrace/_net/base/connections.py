"""Settings and pools of our connections, made from a URL or from a client, with its credentials."""

from __future__ import annotations

import os
import selectors
import threading
from concurrent.futures import Future
from contextlib import suppress
from functools import cache, partial, partialmethod
from ssl import SSLSocket
from typing import Any, Protocol

from redis import exceptions as errors
from redis.credentials import CredentialProvider

from headrace._net.base.children import withhold
from headrace._net.base.sentinel import Manager, managed, watched
from headrace._net.base.sockets import socket_of
from headrace._protocol.limits import BLOCK_S
from headrace._protocol.op import Arg, pack
from headrace._telemetry.client import Outage
from headrace.errors import describe_error

try:
    from redis.driver_info import DriverInfo
except ImportError:  # redis-py 6
    DriverInfo = None  # type: ignore[assignment, misc]

CREDENTIALS_WITHIN_S = 5.0  # seconds that a provider may take
Credentials = tuple[str] | tuple[str, str]
BOUNDS = threading.local()  # `within`: seconds of the call that this thread makes


class Guarded(CredentialProvider):
    """Asks a user's provider in a separate thread, once for each connection.

    No second question is asked while one is open. Raises `redis.AuthenticationError` for the
    provider's exceptions, and `redis.TimeoutError` if it takes too long.
    """

    def __init__(self, theirs: Any) -> None:
        self.theirs = theirs
        self._asked: Future[Credentials] | None = None
        self._pid = os.getpid()

    def get_credentials(self) -> Credentials:
        asked = self.ask()
        within = min(CREDENTIALS_WITHIN_S, getattr(BOUNDS, "within", None) or CREDENTIALS_WITHIN_S)
        with suppress(TimeoutError):
            return self.checked(asked.exception(within), asked)
        raise late()

    def ask(self) -> Future[Credentials]:
        asked = self._asked
        if asked is None or asked.done() or self._pid != os.getpid():  # a fork lacks the thread
            self._pid = os.getpid()
            self._asked = asked = Future[Credentials]()
            threading.Thread(
                target=self._answer, args=(asked,), name="headrace-credentials", daemon=True
            ).start()
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
    return errors.AuthenticationError(
        f"the credential provider has failed: {describe_error(error)}"
    )


def late() -> errors.TimeoutError:
    return errors.TimeoutError("the credential provider has not answered in time")


def guarded(provider: Any) -> Any:
    return provider if isinstance(provider, Guarded) else Guarded(provider)


class Attend(Protocol):
    """A callback that starts the embedded server if necessary, and returns its socket's path.

    It is called before each connection, and again with *refused* if the server refused the
    connection.
    """

    def __call__(self, *, refused: bool = False) -> str: ...


AT_LEAST_S = BLOCK_S + 2.0  # seconds of a socket's timeout: a blocked read ends before that
NOT_COPIED = {  # settings of a client that we set ourselves, or that make no sense in another pool
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "decode_responses",
    "socket_timeout",
    "event_dispatcher",
    "maint_notifications_config",
    "maint_notifications_pool_handler",
    "oss_cluster_maint_notifications_handler",
    "maintenance_state",
    "maintenance_notification_hash",
    "orig_host_address",
    "orig_socket_timeout",
    "orig_socket_connect_timeout",
    "himport_registry",
    "connection_pool",
    "command_packer",
    "parser_class",
    "encoding",
    "encoding_errors",
}


class Packer:
    """Packs redis-py's own commands on a new connection. hiredis could crash the process, as `pack`
    explains.
    """

    @staticmethod
    def pack(name: str | bytes, *args: Arg) -> list[bytes]:
        return [pack([*name.split(), *args])]


def own_settings(settings: dict[str, Any], packer: Packer | None = None) -> dict[str, Any]:
    """Make connection settings of our own from a client's.

    Only the connections of threads have a *packer*.
    """
    ours = {key: value for key, value in settings.items() if key not in NOT_COPIED}
    if packer is not None:  # asyncio's connections pack in Python
        ours["command_packer"] = packer
    ours["socket_timeout"] = max(settings.get("socket_timeout") or 10.0, AT_LEAST_S)
    ours["decode_responses"] = False
    if ours.get("credential_provider") is not None:
        ours["credential_provider"] = guarded(ours["credential_provider"])
    return ours if ours.keys() & {"driver_info", "lib_name", "lib_version"} else ours | _driver()


@cache
def _driver() -> dict[str, Any]:
    """Return the driver's name and version for servers. By default redis-py reads them from disk
    each time.
    """
    return {} if DriverInfo is None else {"driver_info": DriverInfo()}


def own_pool(theirs: Any, plain: Any, retry: Any, manager: type[Manager] = Manager) -> Any:
    """Make our own pool for the server of *theirs*. A pool of Sentinel watches which server is the
    primary.
    """
    settings = partial(own_settings, packer=Packer() if manager is Manager else None)
    # redis-py's 100 ends in errors
    ours = settings(theirs.connection_kwargs) | {"max_connections": 1 << 31}
    kind = theirs.connection_class
    if hasattr(theirs, "sentinel_manager"):
        sentinel = managed(theirs, settings, manager)
        if sentinel is not theirs.sentinel_manager:
            kind = watched(kind, sentinel.watch)
        ours |= {"is_master": theirs.is_master, "connection_class": kind}
        return type(theirs)(theirs.service_name, sentinel, retry=retry, **ours)
    return plain(connection_class=kind, retry=retry, **ours)


def noticed(kind: Any, outage: Outage, connect: Any) -> Any:
    """Make a class like *kind* that sets `outage.opened` when the server accepts.

    *connect* replaces the method of this name.
    """
    greet = "on_connect_check_health" if hasattr(kind, "on_connect_check_health") else "on_connect"

    def opened(connection: Any, *args: Any, **options: Any) -> Any:
        outage.opened = True
        withhold(connection)
        if speaks_first(connection):
            connection._parser.on_connect(connection)  # noqa: SLF001 - redis-py reads only after it has written
            return connection.read_response()
        return getattr(kind, greet)(connection, *args, **options)

    more = {} if connect is None else {"connect": partialmethod(connect, kind)}
    return type(kind.__name__, (kind,), {greet: opened, **more})


def speaks_first(connection: Any) -> bool:
    """Tell whether the server spoke first, which explains why it takes no client.

    After the server closes, sending a command would break the connection before we read that
    message. With TLS a server may always speak first.
    """
    writer, sock = getattr(connection, "_writer", None), socket_of(connection)
    if (
        sock is None
        or isinstance(sock, SSLSocket)
        or (writer is not None and writer.get_extra_info("ssl_object"))
    ):
        return False
    with selectors.DefaultSelector() as selector:
        selector.register(sock.fileno(), selectors.EVENT_READ)
        return bool(selector.select(0))


def refused(error: BaseException) -> bool:
    return isinstance(error.__context__, (FileNotFoundError, ConnectionRefusedError))
