"""One case for many facts of files, because a case of pytest costs far more than a look at a text.

    @each("name", NAMES)
    def test_every_script_has_a_header(name): ...

It takes the place of `pytest.mark.parametrize` where nothing runs, and reports all values that
fail. With `empty=True` servers are emptied for each value, so that scripts may run, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

Body = Callable[..., None]


def each(
    names: str | Sequence[str], values: Iterable[Any], ids: object = None, *, empty: bool = False
) -> Callable[[Body], Body]:
    """Run a body once for each of the values, and fail with all failures.

    *ids* are accepted as by `parametrize`: a failure shows its values.
    """
    del ids
    single = isinstance(names, str)
    named = [names] if isinstance(names, str) else [*names]
    rows: list[Sequence[Any]] = []

    def decorate(body: Body) -> Body:
        @wraps(body)
        def looks(**fixtures: Any) -> None:
            if not rows:  # a generator may import modules that no other test needs
                rows.extend(_row(value, single=single) for value in values)
            assert rows, f"no value of {names}: nothing would be looked at"
            failures: list[BaseException] = []
            servers = fixtures.pop("servers") if empty else None
            for row in rows:
                if servers is not None:
                    servers.empty()
                try:
                    body(**fixtures, **dict(zip(named, row, strict=True)))
                except (Exception, BaseExceptionGroup, pytest.fail.Exception) as error:
                    error.add_note(f"with {', '.join(named)} = {', '.join(map(repr, row))}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(rows)} fail", failures)

        signature = inspect.signature(body)
        others = [one for one in signature.parameters.values() if one.name not in named]
        if empty:
            others.append(inspect.Parameter("servers", inspect.Parameter.KEYWORD_ONLY))
        looks.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return looks

    return decorate


def _row(value: Any, *, single: bool) -> Sequence[Any]:
    """Return the values of one look."""
    if isinstance(value, ParameterSet):
        assert not value.marks
        return value.values
    return [value] if single else value
