"""The terms of a queue as scripts take them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from headrace._model.policy import bucket
from headrace._model.settings import QueueSettings
from headrace._model.terms import IN_TERMS, VALUE_BYTES, Terms


def part(value: str | None) -> bytes:
    """Return a value as nodes and lines have it: with its length, or `-` for a missing one."""
    if value is None:
        return b"-"
    cut = value.encode()[:VALUE_BYTES]
    return b"%d:%b" % (len(cut), cut)


def parts(text: str | bytes) -> tuple[str | None, ...]:
    """Split the path of a node into its values."""
    data = text.encode() if isinstance(text, str) else text
    return tuple(_values(data))


def _values(data: bytes) -> Iterator[str | None]:
    while data:
        if data[:1] == b"-":
            yield None
            data = data[1:]
            continue
        size, _, rest = data.partition(b":")
        yield rest[: int(size)].decode("utf-8", "replace")
        data = rest[int(size) :]


def given(terms: Terms, settings: QueueSettings, share: float) -> str:
    """Return the path, further keys of limits and rates, the numbers of both in a shard with this *share* of all keys,
    and the options in words.
    """
    keys = _once((*filter(None, (limit.key for limit in terms.limits)), *terms.rates))
    rates = [[rate.key or "", *bucket(rate, share)] for rate in settings.rates]
    words = {name: value for name, value in settings.declared().items() if name in IN_TERMS}
    offered = {
        "path": list(terms.path),
        "keys": [key for key in keys if key not in terms.path],
        "limits": [[limit.key or "", limit.slots(share), *[1][: len(limit.each)]] for limit in terms.limits],
        "rates": rates,
        "words": words,
    }
    return json.dumps(offered, ensure_ascii=False, separators=(",", ":"))


def numbers(terms: Terms, share: float) -> list[str | bytes]:
    """Return the paths of the weights, each followed by the weight, and the slots of values with a limit of their own,
    each followed by the limit in a shard with this *share* of all keys.
    """
    rows = [(b"".join(map(part, path)), f"{weight:.10g}") for path, weight in terms.weights]
    own = ((limit, value) for limit in terms.limits for value in limit.each)
    rows += [(b"e" + part(limit.key) + part(value), f"{limit.slots(share, value)}") for limit, value in own]
    return [text for row in rows for text in row]


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
