"""The operations that read the results of jobs, and how jobs ended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from attrs import frozen

from headrace._model import checks
from headrace._model.codec import untyped
from headrace._protocol import replies
from headrace._protocol.answers import Ended
from headrace._protocol.base_ops import BaseOps
from headrace._protocol.keys import job_id, wire_id
from headrace._protocol.op import Op
from headrace._protocol.script import script
from headrace.errors import CodecError


@frozen
class ResultOps(BaseOps):
    """Maker of the operations for results."""

    def result_bytes(self, result: Any) -> bytes:
        """Encode a result by the codec. Raises `TypeError`, `CodecError`, or `ValueError` if too large for a server."""
        try:
            data = self._encoded(result, untyped(self.bound))
        except (TypeError, CodecError) as error:
            raise type(error)(f"result: {error}") from error
        checks.fits("result", [data])
        return data

    def result(self, name: str) -> Op[bytes | None]:
        """Fetch the kept result of a job."""
        keys = [self.keys.result(job_id(name))]
        return Op(
            "result", script("result"), keys, [], lambda reply: None if reply[0] is None else replies.raw(reply[0])
        )

    def results(self, names: Sequence[str]) -> Op[list[bytes | Literal[False] | None]]:
        """Fetch the kept results of jobs, at most 500; `False`: ask for this one again."""
        keys = [self.keys.result(job_id(name)) for name in names]
        return Op("result", script("result"), keys, [], replies.kept, "", names, self.results)

    def ended(self, names: Sequence[str]) -> Op[list[Ended]]:
        """Ask which of at most 500 jobs have ended, and how."""
        return self._op("ended", [wire_id(name) for name in names], replies.ended, (), names, self.ended)
