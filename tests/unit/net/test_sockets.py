"""How long a socket waits."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from headrace._net.base import sockets
from headrace._net.base.sockets import set_timeout


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_a_plain_socket_leaves_it_to_the_kernel(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    set_timeout(ours, 0.02)
    assert ours.gettimeout() is None
    with pytest.raises(BlockingIOError):
        ours.recv(1)
    with pytest.raises(BlockingIOError):
        ours.sendall(bytes(1 << 24))
    theirs.sendall(b"x")
    assert ours.recv(1) == b"x"


def test_tls_does_not(pair: tuple[socket.socket, socket.socket]) -> None:
    """TLS polls the kernel, so without a timeout in Python it would wait for ever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with context.wrap_socket(pair[0], do_handshake_on_connect=False) as ours:
        set_timeout(ours, 0.02)
        assert ours.gettimeout() == 0.02
        with pytest.raises(TimeoutError):
            ours.do_handshake()


class Cooperative(socket.socket):
    """A socket like gevent's, which never blocks its thread whatever its timeout."""

    def settimeout(self, value: float | None) -> None:
        super().settimeout(value)
        os.set_blocking(self.fileno(), False)


def test_one_that_never_blocks_keeps_its_own(pair: tuple[socket.socket, socket.socket]) -> None:
    with Cooperative(fileno=pair[0].detach()) as ours:
        set_timeout(ours, 0.02)
        assert ours.gettimeout() == 0.02


def test_where_the_kernel_takes_none(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a form that it does not know
    monkeypatch.setattr(sockets, "struct", SimpleNamespace(pack=lambda *_: b""))
    set_timeout(pair[0], 0.02)
    assert pair[0].gettimeout() == 0.02
