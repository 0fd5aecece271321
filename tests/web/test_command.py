"""The command `headrace web`. The tests check its address, its access and its end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE

import httpx
import pytest

from headrace import Queue
from headrace.console.cli.app import app
from tests.support.program import started
from tests.support.servers import Server

SAME = {"sec-fetch-site": "same-origin"}


@contextmanager
def serving(url: str, *options: str) -> Iterator[str]:
    """Run the program and yield the address that it prints. It ends properly by Ctrl-C and prints
    its actions."""
    with started("web", "--port", "0", *options, url=url, stdout=PIPE, stderr=PIPE) as running:
        yield running.stdout.readline().decode().strip()
        running.send_signal(signal.SIGINT)
        _, complaints = running.communicate(timeout=60)
        assert running.returncode == 0, complaints.decode()
        assert b"Traceback" not in complaints, complaints.decode()
        if "--read-only" not in options:
            assert b"web_action: pause in q by 127.0.0.1: The queue is paused." in complaints


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"x")
        yield queue


@pytest.mark.slow
def test_redacted(newest: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function in the working directory redacts. A missing function is reported before the
    program serves."""
    (tmp_path / "app.py").write_text("def redact(what, text, job): return f'<{what} withheld>'")
    monkeypatch.chdir(tmp_path)
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"secret", id="a")
    with (
        serving(newest.url, "--redact", "app:redact", "--read-only") as address,
        httpx.Client() as browser,
    ):
        root = browser.get(address, follow_redirects=True).url.copy_with(query=None)
        shown = browser.get(f"{root}job", params={"queue": "q", "id": "a"})
        assert shown.status_code == 200
        assert "&lt;payload withheld&gt;" in shown.text
        assert "secret" not in shown.text
    with started("web", "--redact", "app:nothing", url=newest.url) as refused:
        _, err = refused.communicate()
        assert refused.returncode == 2
    assert b"--redact app:nothing: module 'app' has no function 'nothing'" in err


def test_the_token_lets_browsers_in(newest: Server, queue: Queue) -> None:
    """The token works repeatedly. Without it a browser sees nothing, nor under another name of this
    host."""
    with serving(newest.url) as address, httpx.Client() as browser, httpx.Client() as other:
        root = address.partition("?")[0]
        assert other.get(root).status_code == 403
        assert other.get(f"{root}?token=wrong").status_code == 403
        assert other.get(address, headers={"host": "evil.test"}).status_code == 403
        entered = browser.get(address)
        assert (entered.status_code, entered.headers["location"]) == (303, ".")
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert browser.get(root).status_code == 200
        assert browser.get(address).status_code == 303
        assert browser.get(root, headers={"host": "evil.test"}).status_code == 403
        assert other.post(f"{root}do/pause", data={"queue": "q"}, headers=SAME).status_code == 403
        assert browser.post(f"{root}do/pause", data={"queue": "q"}).status_code == 403
        assert not queue.admin.paused()
        assert browser.post(f"{root}do/pause", data={"queue": "q"}, headers=SAME).status_code == 303
        assert queue.admin.paused()
        assert other.get(address).status_code == 303
        assert other.get(root).status_code == 200


def test_read_only(newest: Server, queue: Queue) -> None:
    with (
        serving(newest.url, "--read-only") as address,
        httpx.Client(follow_redirects=True) as browser,
    ):
        root = address.partition("?")[0]
        assert browser.get(address).status_code == 200
        assert browser.post(f"{root}do/pause", data={"queue": "q"}, headers=SAME).status_code == 403
    assert not queue.admin.paused()


def test_refusals(
    newest: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A foreign address, a port in use and a missing server give one line and exit code 2."""
    for name in ("HEADRACE_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, word in (
            (
                ["--host", "0.0.0.0", "--url", newest.url],
                "--host 0.0.0.0: only this machine is served",
            ),
            (["--port", port, "--url", newest.url], f"--port {port}: "),
            ([], "no server named"),
        ):
            with pytest.raises(SystemExit) as ended:
                app(["web", *arguments], prog_name="headrace")
            out, err = capfd.readouterr()
            assert (ended.value.code, out, err.count("\n")) == (2, "", 1), err
            assert word in err
