# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded,json]"]
# ///
"""The prompt of `python -m asyncio`, typed at as by hand, with `await queue.enqueue(…)` and short
answers."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import time

PATIENCE = 60.0
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")


class Prompt:
    """`python -m asyncio` on a terminal of its own."""

    def __init__(self) -> None:
        self._ours, theirs = pty.openpty()
        environment = os.environ | {"TERM": "dumb", "PYTHON_BASIC_REPL": "1", "NO_COLOR": "1"}
        self.process = subprocess.Popen(
            ["python", "-m", "asyncio"],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._until_asked()

    def __call__(self, line: str) -> str:
        """Type a line and return the output until the next prompt."""
        os.write(self._ours, line.encode() + b"\n")
        said = self._until_asked()
        echo, _, answer = said.partition("\n")
        assert line[-20:] in echo, said
        return answer.strip()

    def end(self) -> int:
        """Type Ctrl-D and return the exit code."""
        os.write(self._ours, b"\x04")
        return self.process.wait(PATIENCE)

    def _until_asked(self) -> str:
        said, end = b"", time.monotonic() + PATIENCE
        while not said.endswith(b">>> "):
            assert time.monotonic() < end and self.process.poll() is None, said.decode()
            if select.select([self._ours], [], [], 0.1)[0]:
                said += os.read(self._ours, 65536)
        return ESCAPES.sub("", said.decode()).replace("\r", "").removesuffix(">>> ")


python = Prompt()
try:
    assert python("from headrace import AsyncQueue, AsyncWorker") == ""
    assert python("from headrace.codecs import JSONCodec") == ""
    assert python("emails = AsyncQueue('emails', url='embedded:./data', codec=JSONCodec())") == ""
    assert python("emails") == "AsyncQueue('emails')"
    receipt = python(
        "receipt = await emails.enqueue({'to': 'ada@example.org'}, id='welcome-ada'); receipt"
    )
    assert receipt == "AsyncReceipt(id='welcome-ada', added=True)", receipt
    assert "added=False" in python(
        "await emails.enqueue({'to': 'ada@example.org'}, id='welcome-ada')"
    )
    assert python("(await emails.counts()).waiting") == "1"

    # What is large is not printed whole.
    large = python("await emails.enqueue('x' * 100_000, id='large'); await emails.find('large')")
    state = python("await emails.find('large')")
    assert "state='waiting'" in state and "100000" in state.replace(",", "").replace("_", ""), state
    assert len(large + state) < 1000, len(large + state)

    # A mistake is an answer, not a traceback of a hundred lines; and the prompt goes on.
    wrong = python("await emails.enqueue(object())")
    assert "CodecError" in wrong.splitlines()[-1], wrong
    wrong = python("AsyncQueue('no spaces please')")
    assert wrong.splitlines()[-1].startswith(
        "headrace.ConfigurationError: queue name 'no spaces please': use"
    ), wrong

    # A lease by hand, and then a worker in the background of the prompt.
    lease = python("lease = await emails.lease(); lease")
    assert "welcome-ada" in lease and len(lease) < 500, lease
    assert python("await lease.complete({'sent': True})") == "True"
    assert python("await receipt.result(timeout=10)") == "{'sent': True}"
    assert python("worker = AsyncWorker(url='embedded:./data')") == ""
    assert python("length = worker.handler(emails)(lambda job: len(job.payload))") == ""
    assert python("worker.start()") == ""
    assert python("await emails.result('large', timeout=10)") == "100000"
    assert python("await worker.stop()") == ""
    assert python("(await emails.counts()).lost") == "0"
    assert python("await emails.close()") == ""
    assert python.end() == 0
finally:
    python.process.kill()
