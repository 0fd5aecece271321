"""The page docs/reference/errors.md lists every class of error. Each row has a test, and each test
has a row."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from redis import exceptions
from redis._parsers import BaseParser

from headrace import errors
from headrace._net.base import retries as retrying
from headrace._protocol import limits
from tests.support.facts import each

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text("utf-8")
FAULTS = ROOT / "tests" / "faults" / "test_errors.py"
VERDICTS = ("waited out", "raised at once", "handled")
NAMED = {  # the tests of rows that have no code, or several
    "connection refused": {"refused", "wrong_address", "budget"},
    "connection lost": {"closed"},
    "no reply": {"timeout"},
    "server restarted": {"restart_under_a_blocked_lease", "restart_under_load"},
    "all data gone": {"flushed"},
    "MOVED": {"redirected"},
    "ASK": {"redirected"},
    "CROSSSLOT": {"redirected"},
    "value too large": {
        "a_value_larger_than_the_server_takes",
        "a_value_too_large_for_a_user_who_may_not_ask",
        "a_value_that_is_refused_fails_nobody_else_s_call",
    },
    "script refused": {"syntax"},
    "OOM": {"oom", "oom_drains", "oom_drops_results"},
    "NOGROUP": {"nogroup", "nogroup_while_blocked", "nogroup_settled"},
}


def table(heading: str) -> list[list[str]]:
    """Return the cells of the one table under *heading*."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


ANSWERS = {
    name.strip(" `"): row[2]
    for row in table("From the server, and the way to it")
    for name in row[0].split(", ")
}
CODES = {name: verdict for name, verdict in ANSWERS.items() if name.isupper()}


def test_every_row_has_its_tests_and_every_test_its_row() -> None:
    tree = ast.parse(FAULTS.read_text("utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    tests = {name.removeprefix("test_") for name in names if name.startswith("test_")}
    rows = {name: NAMED.get(name, {name.lower()}) for name in ANSWERS}
    assert NAMED.keys() <= rows.keys()
    assert {name for name, its in rows.items() if not its <= tests} == set()
    assert tests - set().union(*rows.values()) == set()


def test_every_row_says_what_happens_in_the_same_words() -> None:
    assert [name for name, verdict in ANSWERS.items() if not verdict.startswith(VERDICTS)] == []


def answered(reply: str) -> exceptions.RedisError:
    """Return the exception that redis-py makes of an error reply."""
    error: exceptions.RedisError = BaseParser.parse_error(reply)
    return error


@each("code", CODES)
@each(
    "form", ["{}", "ERR Error running script (call to f_1): @user_script:12: {}"], ids=["", "6.2"]
)
def test_codes_are_waited_out_as_the_page_says(code: str, form: str) -> None:
    """Scripts of Redis 6.2 wrap them."""
    error = answered(form.format(f"{code} 1 127.0.0.1:1"))  # the shape that MOVED and ASK have
    assert retrying.heals(error) is CODES[code].startswith("waited out")


def test_all_that_is_waited_out_is_on_the_page() -> None:
    known = re.findall(r"[A-Z]{3,}", retrying._HEALS.pattern)
    assert {code for code, verdict in CODES.items() if verdict.startswith("waited out")} == set(
        known
    )


def test_transport_errors_are_waited_out() -> None:
    for error in (
        exceptions.ConnectionError(),
        exceptions.TimeoutError(),
        exceptions.BusyLoadingError(),
        answered("ERR max number of clients reached"),
        ConnectionResetError(),
        BrokenPipeError(),
        TimeoutError(),
    ):
        assert retrying.heals(error), error
    for error in (
        ValueError(),
        exceptions.ResponseError("ERR unknown"),
        exceptions.DataError(),
        KeyError("BUSY"),
    ):
        assert not retrying.heals(error), error


def test_times_are_those_of_the_code() -> None:
    section = PAGE.split("*Waited out* means")[1].split("\n|")[0]
    assert [float(n) for n in re.findall(r"(\d+) seconds", section)] == [
        2,
        limits.RETRY_BUDGET_S,
        retrying.FIRST_ANSWER_S,
    ]
    assert retrying.RETRY_PAUSE_S == 2


def test_the_tree_is_the_code_s() -> None:
    def drawn(kind: type[BaseException]) -> list[tuple[int, str]]:
        # not the CLI's own
        children = [child for child in kind.__subclasses__() if child.__name__ in errors.__all__]
        below = [(depth + 1, name) for child in children for depth, name in drawn(child)]
        values = " (ValueError)" if ValueError in kind.__bases__ else ""
        return [(0, kind.__name__ + values), *below]

    picture = PAGE.split("```text\n")[1].split("```")[0]
    lines = [re.fullmatch(r"([ │├└─]*)(.*)", line) for line in picture.splitlines() if line]
    assert sorted((len(m[1]) // 4, m[2]) for m in lines if m) == sorted(
        drawn(errors.HeadraceError) + drawn(errors.Verdict)
    )


def test_every_class_has_a_row_that_says_what_to_do() -> None:
    rows = {row[0].strip("`"): row[1:] for row in table("From headrace")}
    assert set(rows) == set(errors.__all__)
    assert all(meaning and todo for meaning, todo in rows.values())
