"""The supervisor of a directory's private server.

It starts the server, restarts it when it dies, and stops it after its last member. `server` runs
this file by its path, in a session of its own. So it needs the standard library alone, and starts
at once, wherever headrace is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

PATIENCE_S = 30.0  # seconds for each thing we wait for: a lock, the server's answer, its end
RESTARTS, PER_S = 5, 60.0  # so many restarts, at most, in so many seconds


def try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def ask(path: str, command: bytes) -> bytes:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            connection.connect(path)
            connection.sendall(command + b"\r\n")
            return connection.recv(512)
    except OSError:
        return b""


def _supervise(root: Path, binary: str, path: str) -> None:
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    members = _announce(root / "members.lock", events, "empty")
    starts: deque[float] = deque(maxlen=RESTARTS + 1)
    while True:
        server = _start(root, binary, path)
        starts.append(time.monotonic())
        _announce(root / "server.lock", events, "gone")
        event = events.get()
        # Once the directory was removed its paths may lead to a successor's server.
        removed = os.fstat(members).st_nlink == 0
        if event == "empty" or removed:
            _stop(server, "" if removed else path, events)
            return
        status = server.wait() if server else None
        _say(f"the server has ended (status {status}) while it was in use")
        if status is not None and status > 0:
            _say("it refuses to run: not started again")
            return
        pause = starts[0] + PER_S - time.monotonic() if len(starts) == starts.maxlen else 0.0
        if pause > 0:
            _say(f"it ends too often: started again in {pause:.0f} s")
            with contextlib.suppress(queue.Empty):
                events.get(timeout=pause)
                return  # all members have left meanwhile


def _announce(path: Path, events: queue.SimpleQueue[str], event: str) -> int:
    """Put *event* once we have the exclusive lock on *path*. Keep the lock of members.lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def wait() -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if event == "gone":
            os.close(fd)
        events.put(event)

    threading.Thread(target=wait, daemon=True).start()
    return fd


def _start(root: Path, binary: str, path: str) -> subprocess.Popen[bytes] | None:
    held = os.open(root / "server.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not try_lock(held, fcntl.LOCK_EX):
            return None
        options = {
            "port": "0",
            "unixsocket": path,
            "unixsocketperm": "700",
            "dir": str(root),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        return subprocess.Popen(
            [binary, *words],
            stdin=subprocess.DEVNULL,
            pass_fds=[held],
            start_new_session=True,
            umask=0o077,
        )
    finally:
        os.close(held)


def _stop(
    server: subprocess.Popen[bytes] | None, path: str, events: queue.SimpleQueue[str]
) -> None:
    """Stop the server and wait until it is gone.

    The server first writes its append-only file. Without *path* its directory was removed. There is
    nothing to write then, and the server must not delete files there.
    """
    if server is None:
        if not path:
            return  # adopted, and out of reach
        ask(path, b"SHUTDOWN")
    elif path:
        server.terminate()  # the same as SHUTDOWN, and never refused
    else:
        server.kill()
    try:
        events.get(timeout=PATIENCE_S)
    except queue.Empty:
        _say("the server does not stop")
        if server is not None:
            server.kill()
            server.wait()


def _say(message: str) -> None:
    now = time.strftime("%d %b %Y %H:%M:%S")
    sys.stderr.write(f"{os.getpid()}:supervisor {now} {message}\n")
    sys.stderr.flush()


def main() -> None:
    """Leave the process that started us, and supervise the server."""
    if os.fork():
        os._exit(0)
    # The starter's choices are not the server's.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _supervise(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
    os._exit(0)  # the threads that wait for locks are no reason to stay


if __name__ == "__main__":
    main()
