"""The reasons of dead letters. The queue keeps the whole text, and lists show the cause first."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from headrace import Job, Retry
from headrace._core.verdicts import unknown_kind
from headrace._model.codec import BytesCodec
from headrace._model.job import Claim
from headrace._model.letters import SPENT, cause_first
from headrace._model.settings import HandlerSettings, QueueSettings
from headrace._protocol.script import script
from headrace.console.cli import output
from tests.support.facts import each

UNHANDLED = "no handler for jobs of kind 'fax': this worker knows 'mail'"
FAX = "kind 'fax' has no handler: this worker knows 'mail'"
DIED = "no attempts left: its workers died, or let its leases expire"


@each(
    ("reason", "shown"),
    [
        ("", ""),
        ("ValueError: no such user", "ValueError: no such user"),
        (UNHANDLED, FAX),
        (f"{UNHANDLED}, 'sms'", f"{FAX}, 'sms'"),
        ("no handler for jobs of kind 'xxx…", "kind 'xxx… has no handler"),  # cut short
        (
            "no handler for jobs of kind 'a\nb': this worker knows ",
            "kind 'a\nb' has no handler: this worker knows ",
        ),
        ("no handler for jobs of kind ", "no handler for jobs of kind "),
        (DIED, "its workers died, or let its leases expire: no attempts left"),
        (f"{DIED}; before that: E: why; more\nlines", f"E: why; more\nlines; {DIED}"),
        (f"{DIED}; before that: {UNHANDLED}", f"{FAX}; {DIED}"),
        (f"{DIED}; before that: ", "its workers died, or let its leases expire: no attempts left"),
        ("E: no attempts left: why; before that: x", "E: no attempts left: why; before that: x"),
    ],
)
def test_the_cause_comes_first(reason: str, shown: str) -> None:
    assert cause_first(reason) == shown


def test_reasons_are_as_programs_make_them() -> None:
    def handler(**kinds: Any) -> HandlerSettings:
        return HandlerSettings(
            "q", print, 1, Retry(), None, QueueSettings(), BytesCodec(), grace=0.0, kinds=kinds
        )

    claim = Claim(Job("1-0", b"x", "q", {"kind": "fax"}), "w.1", "1-0", 1, 1, leased_at=9.0)
    assert unknown_kind(handler(mail=handler()), claim).reason == UNHANDLED
    made = script("lease").source
    assert made.count(f"'{SPENT}") == 2
    assert f"'{DIED}'" in made
    assert "reason .. '; before that: ' .. own.reason" in made


@pytest.mark.parametrize("terminal", [True, False])
def test_a_table_on_a_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other programs get the reason unchanged."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "40")
    output.show(("id", "reason"), [("a", UNHANDLED)])
    shown = capsys.readouterr().out
    assert ("kind 'fax' has no" in shown) == terminal
    assert (UNHANDLED in shown) != terminal
