"""Messages of the command line, and the cases without one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import AsyncQueue, ConfigurationError, Flow, Queue, Worker
from headrace.console.cli.relay import _engine
from tests.support.awaiting import until
from tests.support.facts import each
from tests.support.program import PATIENCE, PROGRAM, Program, environment, refused
from tests.support.servers import Server


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


def test_the_help_cuts_no_description(within: Program) -> None:
    assert "..." not in within("--help").stdout.partition("Commands:")[2]


@pytest.mark.parametrize("options", [[], ["--jsonl"]])
def test_nothing_to_enqueue(within: Program, options: list[str]) -> None:
    done = within("enqueue", "q", "--create", *options, given=b"\n")
    refused(done, "there is nothing to enqueue", code=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give --every or --cron, one of the two"),
        (["--every", "5", "--cron", "* * * * *"], "--every"),
        (["--every", "5", "--timezone", "UTC"], "--cron"),
    ],
)
def test_schedules_name_options(within: Program, options: list[str], words: str) -> None:
    done = within("schedules", "add", "q", "s", "x", "--create", *options)
    refused(done, words)
    assert " every=" not in done.stderr
    assert " cron=" not in done.stderr


@each(
    "url",
    [
        "redis://:s3cr/et@h:1/0", "redis://:s3cr#et@h:1/0", "redis://u:12/s3cret@h", "rediss://:s3cr?et@h/0",
        "redis+cluster://u:s3cret/@h", "rediss+cluster://u:s3cr/et@a:1,b:2", "redis+cluster://u:12/s3cret@h",
        "redis+cluster://:s3cr#et@a,b", "unix://u:s3cr/et@/run/redis.sock", "unix://u:s3cret/@/run/redis.sock",
    ],
)  # fmt: skip
def test_a_password_that_is_not_encoded(url: str) -> None:
    """The message names the fault and shows no part of the password."""
    with pytest.raises(ConfigurationError, match="percent-encoded") as caught:
        Queue("q", url=url)
    assert "s3" not in str(caught.value)
    assert "et" not in str(caught.value).partition(";")[0].replace("set", "")


def test_urls_that_are_legible() -> None:
    for url in (
        "redis://h:1/0?client_name=a@b", "redis://u:p%2Fw@[::1]:1/0", "redis+cluster://a:1,b:2", "redis://h",
        "redis+cluster://u:p%2Fw@[::1]:1,b", "unix:///run/a@b.sock", "unix://u:p%2Fw@/run/redis.sock",
    ):  # fmt: skip
        Queue("q", url=url)


def test_no_error_of_a_url_has_its_password() -> None:
    """A traceback of its causes does not have it either."""
    for url in (
        "redis+cluster://u:s3cret@h:port", "http://u:s3cret@h", "//h?password=s3cret", "redis://u:s3cret@h:port",
        "redis//u:s3c\nret@h",
    ):  # fmt: skip
        for kind in (Queue, AsyncQueue, Worker, Flow):
            with pytest.raises(ConfigurationError) as caught:
                kind("f", url=url) if kind is not Worker else kind(url=url)
            assert "s3c" not in str(caught.value)
            assert caught.value.__suppress_context__ or caught.value.__context__ is None
    for database in "postgresql://u:s3cret", "u:s3cret":
        with pytest.raises(ConfigurationError) as caught:
            _engine(database)
        assert "s3cret" not in "".join(traceback.format_exception(caught.value)[-1:])


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("stderr", ["closed", "unread", "full"])
def test_work_goes_on_without_standard_error(
    newest: Server, queue: Queue, tmp_path: Path, stderr: str
) -> None:
    """A line that can't be logged is dropped. The status is the status of the work."""
    if stderr == "full" and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    (tmp_path / "app.py").write_text(
        "import os\nfrom headrace import Worker\nworker = Worker()\n"
        "@worker.handler('q')\ndef handle(job):\n"
        "    return b'%d' % os.getpid()\n"
    )
    redirected = {"closed": "2>&-", "unread": "", "full": "2>/dev/full"}[stderr]
    command = f'exec "$@" {redirected}'
    process = subprocess.Popen(
        ["/bin/sh", "-c", command, "sh", *PROGRAM, "work", "app:worker"], cwd=tmp_path, env=environment(newest.url),
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    with process:
        try:
            assert process.stderr is not None
            process.stderr.close()
            first = queue.result(queue.enqueue(b"x").id, PATIENCE)
            assert first
            os.kill(int(first), signal.SIGKILL)  # which is to be told
            second = queue.result(queue.enqueue(b"x").id, PATIENCE)
            assert second not in (None, first)
            until(lambda: any(one.alive for one in queue.admin.workers()))
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_modes_of_a_directory(tmp_path: Path) -> None:
    """The directory is for this user alone, or for the group of its parent directory."""
    code = """
import os, sys
from headrace.codecs import DirectoryStore
os.umask(0o022)
DirectoryStore(sys.argv[1]).put("key", b"x")
os.mkdir(sys.argv[2]); os.chmod(sys.argv[2], 0o770)
DirectoryStore(sys.argv[2]).put("key", b"x")
"""
    made, shared = tmp_path / "made", tmp_path / "shared"
    subprocess.run([sys.executable, "-c", code, made, shared], check=True, timeout=PATIENCE)
    assert [one.stat().st_mode & 0o777 for one in (made, made / "key", shared / "key")] == [
        0o700,
        0o600,
        0o660,
    ]
