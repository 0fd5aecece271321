"""The code of every page runs, from its first block to its last, as one program.

What is fenced as `python` runs. `py` is shown, and has to compile: what somebody has who comes from
elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.facts import each
from tests.support.program import Script
from tests.support.servers import Server, binaries
from tests.unit.house.test_docs import DOCS, PAGES, ROOT, code, name

URL = re.compile(r"embedded:\./data|redis://localhost:6379/0")
WITHIN_S = 120.0

# Pages whose code is run by others, and where.
ELSEWHERE = {
    "docs/how-to/ingest.md": "tests/journeys/pipeline/journey.py",
    "docs/how-to/trace.md": "tests/tracing/test_tracing_with_others.py",
    "docs/how-to/use-in-django.md": "tests/journeys/django/journey.py",
    "docs/how-to/use-in-fastapi.md": "tests/journeys/fastapi/journey.py",
    "docs/how-to/use-in-flask.md": "tests/journeys/flask/journey.py",
    "docs/how-to/use-in-litestar.md": "tests/journeys/litestar/journey.py",
}
# What a page leaves to other programs, by the number of blocks after which it happens: 0 is before
# the first.
SERVED = """
import threading
from headrace import Worker
served = Worker()
served.handler("thumbnails")(lambda job: b"a small " + job.payload)
served.start()
"""
STOPPED = "served.stop()\n"
TELLS = """
import threading, time
from headrace import Queue
def tell():
    with Queue("emails") as emails:
        while True:
            emails.enqueue(b"x")
            emails.lease().complete()
            time.sleep(0.05)
threading.Thread(target=tell, daemon=True).start()
"""
WORKS = "import threading\nthreading.Thread(target=worker.run, daemon=True).start()\n"
EMPTIED = """
import redis
with redis.Redis.from_url(URL) as client:
    client.flushall()
"""
BESIDE: Mapping[str, Mapping[int, str]] = {
    # each section is a program
    "docs/how-to/come-from-another-queue.md": dict.fromkeys((1, 2, 3, 4, 5), EMPTIED),
    "docs/how-to/listen-to-events.md": {0: TELLS},
    "docs/how-to/wait-for-results.md": {0: SERVED, 3: STOPPED, 4: SERVED},
    "docs/tutorial/first-worker.md": {1: WORKS},
}
# it would listen for ever: what it says by then
GOES_ON = {"docs/how-to/listen-to-events.md": "completed "}


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(binaries()[0]) as running:
        yield running


def program(page: Path, url: str) -> str:
    """The code of a page as one module."""
    beside, blocks = BESIDE.get(name(page), {}), code(page)
    parts = [beside.get(0, "")]
    for number, block in enumerate(blocks, 1):
        parts += [block, beside.get(number, "")]
    return URL.sub(url, "\n".join(parts))


RUN = [page for page in PAGES if code(page) and name(page) not in ELSEWHERE]


@pytest.mark.sampled
@pytest.mark.parametrize("page", RUN, ids=name)
def test_a_page_runs(page: Path, server: Server, tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text(program(page, server.url), "utf-8")
    env = os.environ | {"HEADRACE_URL": server.url}
    with Script("import page", cwd=tmp_path, options=["-u", "-W", "error"], env=env) as running:
        assert running.stdout is not None
        if said := GOES_ON.get(name(page)):
            assert running.stdout.readline().decode().startswith(said)
            return
        _, complaints = running.communicate(timeout=WITHIN_S)
        assert running.returncode == 0, complaints.decode()


@pytest.mark.slow
def test_the_first_steps_in_one_folder(tmp_path: Path) -> None:
    """The README's program runs first. The first tutorial follows, is given up halfway, and is
    repeated twice."""
    tutorial = code(DOCS / "tutorial" / "first-queue.md")
    half = "\n".join([*tutorial[:4], "emails.close()"])
    for program in (
        "\n".join(code(ROOT / "README.md")[:1]),
        half,
        "\n".join(tutorial),
        "\n".join(tutorial),
    ):
        (tmp_path / "page.py").write_text(program, "utf-8")
        with Script("import page", cwd=tmp_path, options=["-u", "-W", "error"]) as running:
            _, complaints = running.communicate(timeout=WITHIN_S)
            assert running.returncode == 0, complaints.decode()


def test_what_is_run_elsewhere_is_there() -> None:
    for page, proof in ELSEWHERE.items():
        assert (ROOT / page).is_file(), page
        assert (ROOT / proof).is_file(), proof
    assert {name(page) for page in PAGES} >= {*ELSEWHERE, *BESIDE, *GOES_ON}


def test_most_is_run() -> None:
    assert len(RUN) > 30


@each("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_what_is_shown_only_compiles(page: Path) -> None:
    for block in re.findall(
        r"^```py\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        compile(block, name(page), "exec", dont_inherit=True)
