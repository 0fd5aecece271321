"""The pages of the reference and the maps of the project agree with the code."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import attrs
import pytest

import headrace
from headrace._core.queue import bulk, calls, results
from headrace._model.settings import BatchOptions, HandlerOptions, QueueOptions, QueueSettings
from headrace._protocol import admin_ops, limits, view_ops
from headrace._protocol.keys import Keys
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._telemetry.metrics import STATES, Instruments
from headrace.inspect import Admin, Inspector
from tests.support.facts import each
from tests.unit.house.test_docs import script_of

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MODULES = (
    "headrace.codecs",
    "headrace.inspect",
    "headrace.sql",
    "headrace.testing",
    "headrace.web",
)
QUEUE = {"name", "namespace", "codec"}  # arguments of a queue that are no settings
SERVER = {"url", "client"}


def page(name: str) -> str:
    return (DOCS / name).read_text("utf-8")


def rows(text: str, heading: str) -> list[list[str]]:
    """Return the cells of all tables between *heading* and the next one, without the heads of the
    tables."""
    section = re.split(r"^#+ ", text.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[
        0
    ]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    heads = [number for number, line in enumerate(lines) if line.startswith("|---")]
    heads += [number - 1 for number in heads]
    kept = [line for number, line in enumerate(lines) if number not in heads]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in kept]


def named(text: str) -> list[str]:
    return re.findall(r"`([\w.]+)`", text)


def parameters(verb: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return {name: one for name, one in inspect.signature(verb).parameters.items() if name != "self"}


# -- settings.md -----------------------------------------------------------------------------------

SETTINGS = page("reference/settings.md")


def agrees(cell: str, default: object) -> bool:
    """Tell whether the cell of a default says the same as the code."""
    if default is None:
        return cell in {"none", "`None`", "random", "for ever"}
    if isinstance(default, (bool, str)):
        return cell.strip("`").strip('"') == str(default)
    return isinstance(default, (int, float)) and float(re.sub(r" s$|,", "", cell)) == default


def test_the_options_of_a_queue_are_its_settings() -> None:
    told = {named(row[0])[0]: row[1] for row in rows(SETTINGS, "Queue, AsyncQueue")}
    defaults = QueueSettings.defaults(QueueOptions)
    assert told.keys() == defaults.keys() | QUEUE
    assert not [name for name in defaults if not agrees(told[name], defaults[name])]


def test_the_options_that_handlers_take_not() -> None:
    text = re.search(r"^`@worker\.handler` takes all .*$", SETTINGS, re.MULTILINE)
    assert text is not None
    ours, theirs = text[0].split("`@worker.batch_handler`")
    taken = [set(get_type_hints(kind)) for kind in (QueueOptions, HandlerOptions, BatchOptions)]
    assert set(named(ours)) == taken[0] - taken[1] | {"name", "namespace"}
    assert set(named(theirs.partition(";")[0])) == taken[1] - taken[2]


def test_the_options_of_handlers_and_workers_are_those_of_their_signatures() -> None:
    told = {named(row[0])[0] for row in rows(SETTINGS, "Handlers")}
    verbs = headrace.Worker.handler, headrace.Worker.batch_handler
    found = set(chain.from_iterable(parameters(verb) for verb in verbs))
    assert told == found - {"queue", "codec"} - set(get_type_hints(QueueOptions))
    worker = {named(row[0])[0]: row[1] for row in rows(SETTINGS, "Workers")}
    defaults = {
        name: one.default
        for name, one in parameters(headrace.Worker.__init__).items()
        if name not in SERVER
    }
    assert worker.keys() == defaults.keys()
    assert not [name for name in defaults if not agrees(worker[name], defaults[name])]


@each(
    ("row", "says"),
    [
        ("retries of a call", f"{limits.RETRY_BUDGET_S:.0f} s"),
        ("record of a call", f"{limits.RECORD_S / 60:.0f} minutes"),
        ("a call that is not sent again", f"{limits.RECORD_S / 120:.0f} minutes"),
        ("blocked read", f"{limits.BLOCK_S:.0f} s"),
        ("jobs in one script", f"{limits.JOBS_PER_SCRIPT:,}"),
        ("jobs in one script", f"{limits.BYTES_PER_SCRIPT >> 20} MiB"),
    ],
)
def test_a_fixed_figure_is_that_of_the_code(row: str, says: str) -> None:
    assert says in dict(rows(SETTINGS, "Fixed"))[row]


# -- api.md ----------------------------------------------------------------------------------------

API = page("reference/api.md")
OPS = Ops(Keys.of("q", "headrace"), QueueSettings())
ADDED = limits.JOBS_PER_SCRIPT
# a number of the table is this constant, or an argument of this operation
BATCHES: dict[str, list[int | Op[Any]]] = {
    "enqueue_many": [ADDED, ADDED // 3, ADDED // 4],
    "enqueue_stream": [calls.JOBS_AT_ONCE, calls.BYTES_AT_ONCE >> 20],
    "lease_many": [limits.CLAIMS_PER_SCRIPT, limits.LEASED_PER_SCRIPT],
    "complete_many": [limits.CLAIMS_PER_SCRIPT],
    "results": [results.RESULTS_PER_SCRIPT],
    "waiting": [view_ops.listing(OPS, "waiting", "")],
    "bulk": [bulk.PAGES_A_STEP * limits.LISTED_PER_SCRIPT],
    "position": [view_ops.position(OPS, "a")],
    "cancel_payload": [admin_ops.cancel_payload(OPS, b"x", "", "")],
    "purge": [admin_ops.purge(OPS, "")],
    "redrive": [admin_ops.redrive(OPS, "", [])],
    "expire": [admin_ops.expire(OPS, "", [])],
}
IN_SCRIPTS = {"find", "schedules", "delete"}  # the script itself has the number


def test_the_batch_sizes_are_the_code_s() -> None:
    told = {
        named(row[0])[0]: re.findall(r"\d[\d,]*", row[1]) for row in rows(API, "Jobs in one script")
    }
    assert told.keys() == BATCHES.keys() | IN_SCRIPTS
    for call, sizes in BATCHES.items():
        for figure, size in zip(told[call], sizes, strict=False):
            number = int(figure.replace(",", ""))
            assert (
                str(number) in list(map(str, size.args)) if isinstance(size, Op) else number == size
            ), call
    for call in IN_SCRIPTS:
        (number, *_) = (int(figure.replace(",", "")) for figure in told[call])
        source = (ROOT / "src" / "headrace" / "lua" / f"{call}.lua").read_text("utf-8")
        assert re.search(rf"\b({number}|{number:,}|{number - 1})\b", source), call


def section(kind: type, heading: str) -> str:
    """Return the section of the API's page on a class or a method."""
    found = [text for text in SECTIONS if text.startswith(f"{heading}\n")]
    assert len(found) == 1, f"{heading}: {len(found)} sections"
    assert kind.__doc__
    return found[0]


SECTIONS = [
    text
    for path in sorted((DOCS / "reference" / "api").glob("*.md"))
    for text in re.split(r"^#+ ", path.read_text("utf-8"), flags=re.MULTILINE)[1:]
]
VERBS = [
    pytest.param(kind, name, id=f"{kind.__name__}.{name}")
    for kind in (
        headrace.Queue,
        headrace.Lease,
        Admin,
        headrace.Flow,
        headrace.Tasks,
        headrace.Task,
        headrace.Worker,
        Inspector,
    )
    for name, _ in inspect.getmembers(kind, callable)
    if not name.startswith("_")
]


@each(("kind", "name"), VERBS)
def test_every_verb_has_a_section_with_its_arguments(kind: type, name: str) -> None:
    text = section(kind, f"{kind.__name__}.{name}")
    given = [
        one
        for one, how in parameters(getattr(kind, name)).items()
        if how.kind is not how.VAR_KEYWORD
    ]
    assert [one for one in given if not re.search(rf"\b{one}\b", text)] == []
    assert len(text.split("```")) >= 3  # the signature
    assert text.rpartition("```")[2].strip()  # and words


@each(
    "kind",
    (
        kind
        for module in map(import_module, ("headrace", *MODULES))
        for name in module.__all__
        if isinstance(kind := getattr(module, name), type) and not name.startswith("Async")
    ),
)
def test_a_class_with_calls_has_a_page_of_its_own(kind: type) -> None:
    reference = script_of("reference")
    calls = [name for name, one in reference.members(kind) if not reference.is_property(one)]
    path = f"reference/api/{kind.__name__.lower()}.md"
    if not calls:
        assert not (DOCS / path).exists()
        return
    names = [name.rpartition(".")[2] for name in reference.CLASSES]
    assert kind.__name__ in names, "add it to CLASSES of docs/reference.py, and to .mkdocs.yml"
    heading, *below = re.findall(r"^#+ (.+)$", page(path), re.MULTILINE)
    assert heading == kind.__name__
    assert below == [f"{heading}.{name}" for name in calls]


PUBLIC = [
    pytest.param(module, name, id=name)
    for module in (headrace, *map(import_module, MODULES))
    for name in module.__all__
    if name.removeprefix("Async").removesuffix("_async") == name
]


@each(("module", "name"), PUBLIC)
def test_every_public_name_has_one_section(module: ModuleType, name: str) -> None:
    text = section(type(module), name)
    assert " ".join((getattr(module, name).__doc__ or "").split()[:2]) in text or not callable(
        getattr(module, name)
    )


VALUES = [
    getattr(headrace, name)
    for name in (
        "Job",
        "NewJob",
        "Counts",
        "Event",
        "JobState",
        "Schedule",
        "Receipt",
        "FlowState",
        "Rate",
    )
]


INTERNAL = {"step", "tokens"}  # of a rate: how its script counts


@each("kind", VALUES)
def test_every_field_of_a_value_is_named(kind: type) -> None:
    fields = {one.name for one in attrs.fields(kind)}
    fields |= {
        name for name, one in inspect.getmembers(kind) if isinstance(one, property)
    } - INTERNAL
    public = {name for name in fields if not name.startswith("_")}
    text = section(kind, kind.__name__)
    assert {name for name in public if not re.search(rf"\b{name}\b", text)} == set()


# -- choosing.md -----------------------------------------------------------------------------------


def test_the_versions_of_others_are_those_that_were_measured() -> None:
    """The versions belong to the peers in Python that the page compares line by line."""
    peers = json.loads((ROOT / "bench" / "results" / "compare.json").read_text("utf-8"))["peers"]
    told = dict(
        re.findall(
            r"\b(Celery|RQ|Dramatiq|arq) (\d+\.\d+)",
            page("explanation/choosing.md").partition("\n## ")[0],
        )
    )
    assert told == {name: ".".join(peers[name.lower()]["version"].split(".")[:2]) for name in told}
    assert len(told) == 4


# -- spans-and-metrics.md --------------------------------------------------------------------------


class Meter:
    """Records each instrument with its kind and unit."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, str]] = {}

    def get_meter(self, *_: object) -> Meter:
        return self

    def create_histogram(self, name: str, unit: str, _: str, **__: object) -> None:
        self.made[name] = "histogram", unit

    def create_counter(self, name: str, unit: str, _: str) -> None:
        self.made[name] = "counter", unit

    def create_observable_gauge(self, name: str, _: object, unit: str, __: str) -> None:
        self.made[name] = "gauge", unit


def test_the_instruments_are_those_that_are_made() -> None:
    meter = Meter()
    Instruments(meter)
    told = {
        named(row[0])[0]: (row[1], row[2].strip("`"))
        for row in rows(page("reference/spans-and-metrics.md"), "Metrics")
    }
    assert told == meter.made


# -- the maps of the project -----------------------------------------------------------------------


def test_contributing_names_each_task() -> None:
    told = [
        name
        for row in rows(page("contributing.md"), "Set up")
        for name in re.findall(r"`(?:poe )?(\w+)`", row[0])
    ]
    assert sorted(told) == sorted(PROJECT["tool"]["poe"]["tasks"])


def test_the_map_leads_to_files() -> None:
    table = rows(page("contributing.md"), "To change X, open Y")
    assert len(table) > 15
    for row in table:
        for path in re.findall(r"`(\w[\w/]*(?:\.py|\.lua|/))`", row[1]):
            found = list((ROOT / "src" / "headrace").rglob(path.rstrip("/")))
            assert found, path


def contract(start: str) -> list[str]:
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    layers: list[str] = next(one["layers"] for one in contracts if one["name"].startswith(start))
    return [name for layer in layers for name in layer.split(" | ")]


def test_design_has_the_layers_that_are_checked() -> None:
    block = re.search(
        r"^```text\n(django.*?)^```$", page("explanation/design.md"), re.MULTILINE | re.DOTALL
    )
    assert block is not None
    told = [
        name for line in block[1].splitlines() for name in re.split(r"  +", line)[0].split(" | ")
    ]
    assert told == [
        name for name in contract("Folders") if name not in {"__main__", "_forks", "_installing"}
    ] + ["lua/"]
    (core,) = (line for line in block[1].splitlines() if line.startswith("_core"))
    rooms = [
        name
        for name in contract("The core's rooms")
        if (ROOT / "src/headrace/_core" / name).is_dir()
    ]
    assert named(core) == rooms


def drawn(picture: str) -> set[str]:
    """Return the names in the boxes of a drawing."""
    boxes = re.findall(
        r'class="name"[^>]*>([^<]+)<', (DOCS / "pictures" / picture).read_text("utf-8")
    )
    return {name for box in boxes for name in box.split(", ")}


def test_the_drawing_of_a_worker_has_its_roles() -> None:
    core = ROOT / "src" / "headrace" / "_core"
    sources = [(core / room / "roles.py").read_text("utf-8") for room in ("worker", "shards")]
    roles = {name for text in sources for name in re.findall(r'yield "(\w+)", ', text)}
    assert roles <= drawn("worker-roles.svg")
    assert drawn("worker-roles.svg") - roles == {
        "handlers: threads",
        "or tasks of the event loop",
        "server",
    }


def test_the_drawing_of_a_job_has_its_states() -> None:
    assert drawn("job-life.svg") == {*STATES, "completed"}


def test_a_decision_is_short() -> None:
    records = list((DOCS / "decisions").glob("*.md"))
    assert len(records) >= 10
    assert not [one.name for one in records if len(one.read_text("utf-8").split()) > 150]
