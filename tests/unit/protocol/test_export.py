"""The exported protocol is complete and equal to the protocol that the package uses."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from typing import Any

import pytest

from headrace._protocol import admin_ops, view_ops
from headrace._protocol.export import protocol
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from headrace._protocol.script import header, names, script as loaded
from tests.support.facts import each


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return protocol()


@pytest.mark.slow
def test_the_command_prints_it(found: dict[str, Any]) -> None:
    printed = subprocess.check_output([sys.executable, "-m", "headrace", "protocol"], timeout=60)
    assert json.loads(printed) == found


@each("name", names())
def test_a_script_can_be_sent_as_it_is(name: str, found: dict[str, Any]) -> None:
    script = found["scripts"][name]
    assert script["sha1"] == hashlib.sha1(script["source"].encode()).hexdigest()
    assert "-- @" not in script["source"]
    assert [key for key in script["keys"] if key != "lane"] == list(loaded(name).key_names)
    assert (
        ("lane" in script["keys"])
        == ("call" in script["args"])
        == ("'PX', '600000'" in script["source"])
    )


def test_the_arguments_are_as_many_as_are_sent(found: dict[str, Any]) -> None:
    ops = Ops(Keys.of("q"))
    for op in (
        ops.beat("w", 1),
        ops.lease("w", 1),
        ops.reclaim("w", 1),
        ops.leave("w"),
        admin_ops.cancel(ops, "a"),
        view_ops.counts(ops),
    ):
        args = [
            arg
            for arg in found["scripts"][op.name]["args"]
            if arg != "call" and not arg.endswith("...")
        ]
        assert len(op.args) == len(args), op.name


def test_templates_make_the_keys(found: dict[str, Any]) -> None:
    keys = Keys.of("shop/orders", "mine")

    def filled(template: str, **more: str) -> str:
        for name, value in {
            "namespace": "mine",
            "group": "shop",
            "queue": "shop/orders",
            **more,
        }.items():
            template = template.replace(f"<{name}>", value)
        return template

    assert filled(found["key"], part="jobs") == keys.key("jobs")
    assert filled(found["lane"], lane="1f") == keys.lane("1f")
    assert filled(found["result"], id="a") == keys.result("a")
    assert [filled(word, ms="250") for word in found["wait"]] == [
        str(word) for word in Ops(keys).wait(0.25)
    ]


def test_a_header_of_another_form_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "lua").mkdir()
    (tmp_path / "lua" / "x.lua").write_text("-- x: does something\n-- KEYS   a (hash)\nreturn 1\n")
    monkeypatch.setattr("headrace._protocol.script._FOLDER", tmp_path / "lua")
    with pytest.raises(ValueError, match="the header must be"):
        header("x")
