"""Which event loop a worker makes."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest

from headrace import ConfigurationError
from headrace._installing import install_command
from headrace._net.aio import loops


def name_of_the_loop() -> str:
    names: list[str] = []

    async def story() -> None:
        names.append(loops.named())

    loops.run(story())
    return names[0]


def test_uvloop_where_it_is_installed_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("uvloop")
    monkeypatch.delenv("HEADRACE_LOOP", raising=False)
    assert name_of_the_loop() == "uvloop"
    monkeypatch.setenv("HEADRACE_LOOP", "asyncio")
    assert name_of_the_loop() == ""


def test_asyncio_where_uvloop_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    monkeypatch.delenv("HEADRACE_LOOP", raising=False)
    assert name_of_the_loop() == ""
    monkeypatch.setenv("HEADRACE_LOOP", "uvloop")
    with pytest.raises(ConfigurationError, match=re.escape(install_command("speed"))):
        name_of_the_loop()


def test_another_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_LOOP", "trio")
    with pytest.raises(ConfigurationError, match="give uvloop or asyncio"):
        name_of_the_loop()


def test_a_loop_of_the_user_s_is_left_alone() -> None:
    async def story() -> str:
        return loops.named()

    assert asyncio.run(story()) == ""
