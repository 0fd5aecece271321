"""The helper `each` of `support/facts.py` runs a case for many values and reports all failures."""

from __future__ import annotations

import pytest

from tests.support.facts import each


def test_all_failures_are_told_with_their_values() -> None:
    looked = []

    @each("limit", [1, 2])
    @each(("text", "length"), [("a", 1), pytest.param("bb", 3, id="wrong"), ("ccc", 3)])
    def body(text: str, length: int, limit: int, more: str) -> None:
        looked.append((limit, text))
        assert more == "a fixture"
        if len(text) != length:
            pytest.fail("its length")

    with pytest.raises(BaseExceptionGroup, match=r"2 of 2 fail") as told:
        body(more="a fixture")
    assert looked == [(limit, text) for limit in (1, 2) for text in ("a", "bb", "ccc")]
    inner = told.value.exceptions[1]
    assert isinstance(inner, BaseExceptionGroup)
    assert inner.__notes__ == ["with limit = 2"]
    assert inner.exceptions[0].__notes__ == ["with text, length = 'bb', 3"]


def test_nothing_to_look_at_is_an_error() -> None:
    body = each("name", [])(lambda name: None)
    with pytest.raises(AssertionError, match="nothing would be looked at"):
        body()
