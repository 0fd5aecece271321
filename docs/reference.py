"""Write the pages of the reference from the code. Docstrings give the API, and commands and
settings give tables.

    python docs/reference.py [--check]

With `--check` nothing is written; the exit status says whether all pages are fresh.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import EnumType
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_args, get_origin, get_type_hints

import typer
from attrs import frozen

import headrace
from headrace import errors
from headrace._core.queue import bulk, calls, results
from headrace._model.checks import HEADERS_AT_MOST
from headrace._model.settings import BatchOptions, HandlerOptions, QueueOptions
from headrace._net.base.retries import FIRST_ANSWER_S, RETRY_PAUSE_S
from headrace._protocol import limits
from headrace._telemetry import log
from headrace._telemetry.metrics import Instruments
from headrace.console.cli.app import app
from headrace.errors import REASON_CHARACTERS

DOCS = Path(__file__).parent
FOLDER = DOCS / "reference"
CONFIG = DOCS.parent / ".mkdocs.yml"
WRITTEN = "<!-- Written by docs/reference.py from {}. Do not edit. -->\n"

# -- the API ---------------------------------------------------------------------------------------

# A class with calls has a page of its own. `inspect.Admin` is a class of a module.
CLASSES = [
    "Queue",
    "Receipt",
    "Job",
    "Lease",
    "Tasks",
    "Task",
    "Flow",
    "Worker",
    "AsyncWorker",
    "inspect.Admin",
    "inspect.Inspector",
    "inspect.Overview",
    "inspect.ChildView",
    "inspect.DeadPage",
    "codecs.Codec",
    "codecs.JSONCodec",
    "codecs.MsgpackCodec",
    "codecs.PydanticCodec",
    "codecs.Compressed",
    "codecs.Encrypted",
    "codecs.Offloaded",
    "codecs.DirectoryStore",
    "sql.Outbox",
]
# Each shared page: its title, and its names; a module stands for all names of it that no page
# before has.
SHARED: dict[str, tuple[str, list[str]]] = {
    "functions": ("Functions", ["as_completed", "queues", "workers"]),
    "options": (
        "Options",
        [
            "NewJob",
            "Rate",
            "Limit",
            "Debounce",
            "Throttle",
            "Replace",
            "FlowJob",
            "Next",
            "FanOut",
        ],
    ),
    "verdicts": (
        "Verdicts",
        [
            "Retry",
            "RetryLater",
            "DeadLetter",
            "Release",
            "Complete",
            "BatchError",
            "errors.Verdict",
        ],
    ),
    "values": (
        "Values",
        [
            "Counts",
            "Event",
            "JobState",
            "inspect.Attempt",
            "inspect.Step",
            "inspect.Progress",
            "inspect.Children",
            "inspect.Place",
            "FlowState",
            "Schedule",
            "inspect.Bulk",
            "inspect.Repairs",
            "inspect.RunState",
            "inspect.Shard",
            "inspect.Resharding",
            "inspect.Share",
            "inspect.WorkerState",
            "inspect.WorkerFacts",
            "inspect.ChildFacts",
            "inspect.OtherTerms",
        ],
    ),
    "inspect": ("Views", ["inspect"]),
    "codecs": ("Codecs", ["codecs"]),
    "errors": ("Errors", ["errors"]),
    "sql": ("SQL", ["sql"]),
    "web": ("Pages", ["web"]),
    "testing": ("Testing", ["testing"]),
}
MODULES = ("", "inspect", "codecs", "errors", "sql", "web", "testing")  # the public ones

# What annotations are called inside, and what they stand for.
ALIASES = {
    "Delay": "float | timedelta | datetime | None",
    "Timeout": "float | timedelta | None",
    "Seconds": "float | timedelta",
    "Client": "redis.Redis | redis.RedisCluster",
    "ClientT": "redis.Redis | redis.RedisCluster",
    "Redis": "redis.Redis | redis.RedisCluster",
    "Named": "Mapping[str, float]",
    "IfExists": "Debounce | Throttle | Replace",
    "Full": '"raise" | "block"',
}

# Methods by which codecs ask one another; their users call none of them.
INSIDE = {
    "around",
    "binds",
    "bound",
    "discard",
    "from_text",
    "grouped",
    "holds",
    "inline",
    "inner",
    "keeps",
}
INSIDE |= {"name", "of", "opened", "repeatable", "ticket", "untyped"}
INSIDE_OF = {  # methods by which scripts and workers ask
    "Debounce": {"terms"},
    "Limit": {"slots"},
    "Rate": {"step", "tokens"},
    "Relay": {"join", "begin", "end"},
    "Replace": {"terms"},
    "Throttle": {"terms"},
}
# classes, by users; or as their twins
NOT_CALLED = {"Admin", "AsyncWorker", "Codec", "Lease", "Receipt", "Task"}

# How many jobs one script takes, of calls for many. Of some only their script has the number.
BATCHES = [
    (
        "`enqueue_many`",
        f"{limits.JOBS_PER_SCRIPT:,}; {limits.JOBS_PER_SCRIPT // 3} with an id or headers, {limits.JOBS_PER_SCRIPT // 4} with a delay",
    ),
    (
        "`enqueue_stream`",
        f"{calls.JOBS_AT_ONCE:,}, or {calls.BYTES_AT_ONCE >> 20} MiB, in one `enqueue_many`",
    ),
    (
        "`lease_many`",
        f"{limits.CLAIMS_PER_SCRIPT}; {limits.LEASED_PER_SCRIPT} in a queue with levels",
    ),
    ("`complete_many`, `keeping`", f"{limits.CLAIMS_PER_SCRIPT}"),
    ("`results`, `as_completed`", f"{results.RESULTS_PER_SCRIPT}"),
    ("`waiting`, `running`, `delayed`, `blocked`, `dead`", f"{limits.LISTED_PER_SCRIPT}"),
    ("`bulk`", f"{bulk.PAGES_A_STEP * limits.LISTED_PER_SCRIPT:,} in a step"),
    ("`find`", "1,000 dead letters"),
    ("`position`", "1,000, and it counts no further"),
    ("`schedules`", "500"),
    ("`cancel_payload`, `purge_dead`, `repair`", "500"),
    ("`purge`", "200"),
    ("`redrive`, `move`", "100"),
    ("`expire`, `fail_worker`", "400"),
    ("`delete`", "250 of flows"),
]

BATCHED = """
## Jobs in one script

A call for many jobs is several scripts, each for at most so many jobs, and 1 MiB of them:
"""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def anchor(heading: str) -> str:
    """Return the anchor of a heading as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def heading_of(page: str) -> str:
    """Return the title of a page."""
    return re.findall(r"^# (.+)$", page, re.MULTILINE)[0]


def linked(text: str, docs: str) -> str:
    """Return a text in which paths of the docs are links with the titles of their pages."""

    def link(found: re.Match[str]) -> str:
        title = heading_of((DOCS / found[1]).read_text("utf-8"))
        return f"[{title}]({docs}{found[1]})"

    return re.sub(r"`docs/([\w/-]+\.md)`", link, text)


def prose(text: str | None, page: str) -> str:
    """Return a docstring as Markdown. A path of the docs becomes a link from *page*, and an
    indented block is code."""
    up = "../" * page.count("/")
    text = inspect.cleandoc(text or "")
    text = linked(text, f"../{up}")
    return re.sub(r"((?:^|\n)(?: {4}.*\n?|\n)*(?: {4}.*))", _fenced, text)


def _fenced(found: re.Match[str]) -> str:
    block = inspect.cleandoc("\n" + found[1])
    language = "pyi" if "├" not in block else "text"
    return f"\n\n```{language}\n{block}\n```\n" if block else found[1]


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a docstring."""
    flat = " ".join(inspect.cleandoc(text or "").partition("\n\n")[0].split())
    found = re.match(r".*?(?<!e\.g)[.:](?= [A-Z*`]|$)", flat)
    return found[0].rstrip(":") if found else flat


def written(annotation: Any) -> str:
    """Return an annotation as text, with its private aliases replaced."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\bheadrace\.(_\w+\.)+", "", text)
    return re.sub(
        r"(?<![\w.])[A-Z]\w*\b", lambda word: ALIASES.get(word[0], word[0]), text.strip("'")
    )


def default(value: Any) -> str:
    """Return the default of a parameter as text."""
    text = repr(value)
    if text.startswith("mappingproxy("):
        return text[13:-1]
    return "…" if text.startswith("<") or value is ... or "object at 0x" in text else text


def signature(name: str, function: Callable[..., Any]) -> str:
    """Return a signature on one line if it fits, or with a line for each parameter."""
    found = inspect.signature(function)
    parts: list[str] = []
    kinds = [one.kind for one in found.parameters.values()]
    star = False
    for at, one in enumerate(found.parameters.values()):
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not star and one.VAR_POSITIONAL not in kinds:
            parts.append("*")
            star = True
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        text = mark + one.name
        if one.annotation is not one.empty:
            text += f": {written(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {default(one.default)}" if ":" in text else f"={default(one.default)}"
        parts.append(text)
        if one.kind is one.POSITIONAL_ONLY and (
            at + 1 == len(kinds) or kinds[at + 1] is not one.POSITIONAL_ONLY
        ):
            parts.append("/")
    answer = (
        ""
        if found.return_annotation in (found.empty, None, "None")
        else f" -> {written(found.return_annotation)}"
    )
    line = f"{name}({', '.join(parts)}){answer}"
    return (
        line
        if len(line) <= 100
        else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){answer}"
    )


def public_bases(kind: type) -> list[type]:
    """Return the bases of a class that have their own section."""
    return [
        base
        for base in kind.__mro__[1:]
        if base.__module__ in {"headrace", "headrace.errors", "headrace.inspect"}
    ]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Return the public methods and properties of a class in their order, and its bases' last."""
    elsewhere = {name for base in public_bases(kind) for name in vars(base)}
    elsewhere |= (
        set(dir(getattr(headrace, kind.__name__.removeprefix("Async"))))
        if is_twin(kind.__name__, headrace)
        else set()
    )
    seen = (
        elsewhere
        | INSIDE_OF.get(kind.__name__, set())
        | (INSIDE if kind.__module__ == "headrace.codecs" else set())
    )
    for base in kind.__mro__:
        if not base.__module__.startswith("headrace"):
            continue
        for name, value in vars(base).items():
            shown = isinstance(value, FunctionType | property) or hasattr(value, "func")
            if (
                not name.startswith("_")
                and shown
                and name not in seen
                and inspect.getdoc(getattr(kind, name, None))
            ):
                seen.add(name)
                yield name, value


def is_property(value: Any) -> bool:
    """Tell whether a member is read without a call."""
    return not isinstance(value, FunctionType)


def answer_of(value: Any) -> str:
    """Return the annotation of a property."""
    function = getattr(value, "fget", None) or getattr(value, "func", value)
    return written(getattr(function, "__annotations__", {}).get("return", "Any"))


def of_class(kind: type, page: str, level: str = "##") -> Iterator[str]:
    """Return the section of a class, or its page if its heading has the level of a title."""
    yield f"{level} {kind.__name__}\n"
    made = (
        any("__init__" in vars(base) for base in kind.__mro__[:-1])
        and kind.__name__ not in NOT_CALLED
    )
    if made and not issubclass(kind, BaseException):
        yield f"```pyi\n{signature(kind.__name__, kind)}\n```\n"
    own = (
        inspect.cleandoc(kind.__doc__ or "")
        .replace("The arguments are explained at `__init__`.", "")
        .strip()
    )
    yield prose(own, page) + "\n"
    if made and "- *" in (explained := inspect.getdoc(kind.__init__) or ""):
        yield prose(explained.partition("\n\n")[2], page) + "\n"
    if bases := [
        base.__name__ for base in public_bases(kind) if not issubclass(kind, BaseException)
    ]:
        yield f"It also has all members of `{bases[0]}`.\n"
    every = list(members(kind))
    read = [(name, value) for name, value in every if is_property(value)]
    called = [(name, value) for name, value in every if not is_property(value)]
    for name, value in read:
        text = " ".join((inspect.getdoc(value) or "").split())
        yield f"- `{name}: {answer_of(value)}`. {prose(text, page)}"
    if read:
        yield ""
    if len(called) > 3:
        rows = [
            (f"[`{n}`](#{anchor(f'{kind.__name__}.{n}')})", first_sentence(inspect.getdoc(v)))
            for n, v in called
        ]
        yield table(("call", ""), rows)
    for name, value in called:
        yield f"{level}# {kind.__name__}.{name}\n"
        yield f"```pyi\n{signature(name, value)}\n```\n"
        yield prose(inspect.getdoc(getattr(kind, name)), page) + "\n"


def of_name(module: ModuleType, name: str, page: str) -> Iterator[str]:
    """Return the section of a public name."""
    value = getattr(module, name)
    if isinstance(value, type):
        yield from of_class(value, page)
        return
    yield f"## {name}\n"
    if callable(value):
        yield f"```pyi\n{signature(name, value)}\n```\n"
        yield prose(inspect.getdoc(value), page) + "\n"
    else:
        yield ", ".join(f"`{one}`" for one in sorted(value)) + ".\n"


def module_of(path: str) -> ModuleType:
    """Return a public module by its name below headrace."""
    return importlib.import_module(f"headrace.{path}" if path else "headrace")


def names_of(wanted: list[str], taken: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Return the (module, name) pairs of a page. A module stands for all of its names that no page
    has yet."""
    for one in wanted:
        if one in MODULES:
            every = [
                (one, name) for name in module_of(one).__all__ if not is_twin(name, module_of(one))
            ]
            yield from (pair for pair in every if pair not in taken)
        else:
            module, _, name = one.rpartition(".")
            yield module, name


def is_twin(name: str, module: ModuleType) -> bool:
    """Tell whether a name is the class for asyncio, which has the same documentation."""
    plain = name.removeprefix("Async").removesuffix("_async")
    return plain != name and plain in module.__all__


def api() -> Mapping[str, str]:
    """Return the pages of the API by their path below the reference."""
    written_pages: dict[str, str] = {}
    single = [*CLASSES, *(name for _, names in SHARED.values() for name in names)]
    taken = set(names_of([name for name in single if name not in MODULES], set()))
    taken |= {
        ("errors", name)
        for module, name in taken
        if not module and name in module_of("errors").__all__
    }
    classes: list[tuple[str, ...]] = []
    by_module: dict[str, list[str]] = {}
    for module, name in names_of(CLASSES, set()):
        path = f"api/{name.lower()}.md"
        kind = getattr(module_of(module), name)
        parts = [WRITTEN.format("docstrings"), *of_class(kind, path, "#")]
        written_pages[path] = tidy("\n".join(parts))
        classes.append((f"[`{name}`]({path})", first_sentence(kind.__doc__)))
        by_module.setdefault(module, []).append(f"[`{name}`]({name.lower()}.md)")
    shared: list[tuple[str, ...]] = []
    for page, (title, wanted) in SHARED.items():
        path = f"api/{page}.md"
        parts = [WRITTEN.format("docstrings"), f"# {title}\n"]
        names = list(names_of(wanted, taken))
        taken |= set(names)
        if wanted[0] in MODULES:
            parts.append(prose(module_of(wanted[0]).__doc__, path) + "\n")
            if others := by_module.get(wanted[0]):
                parts.append(f"Pages of their own: {', '.join(others)}.\n")
        for module, name in names:
            parts += of_name(module_of(module), name, path)
        written_pages[path] = tidy("\n".join(parts))
        links = [f"[`{name}`]({path}#{anchor(name)})" for _, name in names]
        shared.append((f"[{title}]({path})", ", ".join(links) or "all have pages of their own"))
    parts = [WRITTEN.format("docstrings"), "# API\n", prose(headrace.__doc__, "api.md") + "\n"]
    parts += [table(("class", ""), classes), table(("page", "names"), shared)]
    parts += [BATCHED, table(("call", "jobs"), BATCHES)]
    written_pages["api.md"] = tidy("\n".join(parts))
    return written_pages


# -- all pages -------------------------------------------------------------------------------------

PLACE = re.compile(r"^( +)- \"?([^\"\n]+?)\"?:(?: ([\w/-]+\.md))?$", re.MULTILINE)


def every_page(fresh: Mapping[str, str]) -> str:
    """Return the list of all pages in the order of the site's navigation, by their own titles."""
    nav = CONFIG.read_text("utf-8").partition("\nnav:\n")[2].partition("\ntheme:")[0]
    parts = [WRITTEN.format(CONFIG.name) + "\n# All pages\n"]
    for indent, title, path in PLACE.findall(nav):
        depth = len(indent) // 4
        if not path:
            parts.append(f"\n{'#' * (depth + 2)} {title}\n")
        elif path.startswith("reference/"):
            text = fresh.get(path.removeprefix("reference/")) or (DOCS / path).read_text("utf-8")
            parts.append(f"- [{heading_of(text)}]({path.removeprefix('reference/')})")
        elif path != "index.md":
            parts.append(f"- [{heading_of((DOCS / path).read_text('utf-8'))}](../{path})")
    return tidy("\n".join(parts))


# -- settings --------------------------------------------------------------------------------------

# Where more is said of an option.
SEE = {
    "priorities": ("prioritise jobs", "../how-to/prioritise-jobs.md"),
    "codec": ("typed payloads", "../how-to/typed-payloads.md"),
    "history": ("keep a history", "../how-to/wait-for-results.md#keep-a-history"),
    "trends": ("trends", "../how-to/watch-in-the-browser.md#trends"),
    "rate": ("limit rates", "../how-to/limit-rates.md"),
    "max_waiting": ("a bound for waiting jobs", "#a-bound-for-waiting-jobs"),
    "unique_for": ("one id", "#one-id"),
    "durable": ("wait until a write is durable", "../how-to/durable-writes.md"),
    "timeout": ("timeouts", "#timeouts"),
    "shards": ("one queue on all masters", "../how-to/use-a-cluster.md#one-queue-on-all-masters"),
    "ordered": ("keep the order of a key", "../how-to/keep-order.md"),
    "fair": ("share workers", "../how-to/share-workers.md"),
    "limits": ("run at most n jobs of a key", "../how-to/limit-concurrency.md"),
    "retry": ("retry, and handle dead letters", "../how-to/retry-and-dead-letters.md"),
    "kind": ("dispatch jobs of several kinds", "../how-to/dispatch-by-kind.md"),
    "persistent": ("hold connections open", "../how-to/persistent-jobs.md"),
    "name": ("workers under a name", "../how-to/operate-a-queue.md#workers-under-a-name"),
    "max_outage": ("when the server is away", "../how-to/when-the-server-is-away.md"),
    "trace_parent": ("parent or link", "../how-to/trace.md#parent-or-link"),
}

FIXED = [
    (
        "retries of a call",
        f"for {limits.RETRY_BUDGET_S:.0f} s, or its [`timeout`](#timeouts) (a worker's: no limit), with jittered exponential backoff up to {RETRY_PAUSE_S:.0f} s; {FIRST_ANSWER_S:.0f} s before the first answer ever",
    ),
    (
        "a call that is not sent again",
        f"{limits.RECORD_S / 120:.0f} minutes after it was sent first: half as long as the server keeps its answer",
    ),
    ("a stop", "as long as the longest handler, and up to 2 s more if the server does not answer"),
    (
        "a blocked event loop",
        "its jobs are kept for a lease, or their longer `deadline`; logged after a heartbeat, then at most once a minute",
    ),
    ("record of a call", f"{limits.RECORD_S / 60:.0f} minutes"),
    ("blocked read", f"{limits.BLOCK_S:.0f} s at most"),
    ("socket timeout", "the client's own, at least 7 s; 10 s if it has none"),
    (
        "bytes of one job, or result",
        "512 MiB, or the server's `proto-max-bulk-len`; more is a `ValueError` before anything is sent",
    ),
    (
        "jobs in one script",
        f"{limits.JOBS_PER_SCRIPT:,}, and about {limits.BYTES_PER_SCRIPT >> 20} MiB when enqueued",
    ),
    (
        "reclaim by a queue without a worker",
        "once a second while it leases, more often while it goes through many leases",
    ),
    ("job ids", "500 bytes of UTF-8 without control characters"),
    ("headers", f"{HEADERS_AT_MOST:,} of a job"),
    ("reasons", f"{REASON_CHARACTERS:,} characters"),
]


def told(docstring: str | None) -> dict[str, str]:
    """Return the options that a docstring explains, one in an item of its list."""
    items = re.split(r"\n- (?=\*)", "\n" + inspect.cleandoc(docstring or ""))[1:]
    found: dict[str, str] = {}
    for item in items:
        text = " ".join(item.partition("\n\n")[0].split())
        names, _, meaning = text.partition(": ")
        found |= dict.fromkeys(re.findall(r"\*(\w+)\*", names), meaning)
    return found


def shown_default(one: inspect.Parameter) -> str:
    """Return the default of an option as in a table."""
    if one.default is one.empty:
        return ""
    if one.default is None:
        return "none"
    if isinstance(one.default, bool | str):
        return f"`{one.default!r}`".replace("'", '"')
    seconds = "timedelta" in written(one.annotation)
    return f"{one.default:,g} s" if seconds else f"{one.default:,}"


def options(function: Callable[..., Any], texts: dict[str, str], names: set[str]) -> str:
    """Return a table of options with their defaults and meanings."""
    found = inspect.signature(function).parameters
    # of which the pages say nothing more
    unsaid = {("name", headrace.Queue), ("timeout", headrace.Worker)}
    rows: list[tuple[str, ...]] = []
    for name, one in found.items():
        if name in names:
            text = linked(texts[name], "../")
            title, link = ("", "") if (name, function) in unsaid else SEE.get(name, ("", ""))
            rows.append(
                (
                    f"`{name}`",
                    shown_default(one),
                    f"{text} [{title[0].upper() + title[1:]}]({link})." if title else text,
                )
            )
    return table(("option", "default", ""), rows)


def listed(names: Iterable[str]) -> str:
    """Return names as a text."""
    *some, last = sorted(f"`{name}`" for name in names)
    return f"{', '.join(some)} and {last}" if some else last


def settings_tables() -> dict[str, str]:
    """Return the tables of settings.md by name."""
    taken = [set(get_type_hints(kind)) for kind in (QueueOptions, HandlerOptions, BatchOptions)]
    of_queue = {*taken[0], "name", "namespace", "codec"}
    handler, batch = headrace.Worker.handler, headrace.Worker.batch_handler
    texts = {**told(batch.__doc__), **told(handler.__doc__)}
    own = set(texts) - taken[0] - {"queue"}
    both = (
        options(handler, texts, own)
        + options(batch, texts, own - set(inspect.signature(handler).parameters)).split("\n", 2)[2]
    )
    besides = (
        f"`@worker.handler` takes all arguments of the queue but {listed(taken[0] - taken[1] | {'name', 'namespace'})}, "
        f"`@worker.batch_handler` these but {listed(taken[1] - taken[2])}; and both:\n\n"
    )
    return {
        "queue": options(headrace.Queue, told(headrace.Queue.__doc__), of_queue),
        "handlers": besides + both,
        "workers": options(
            headrace.Worker,
            told(inspect.getdoc(headrace.Worker.__init__)),
            set(told(inspect.getdoc(headrace.Worker.__init__))) - {"url", "client"},
        ),
        "fixed": table(("", ""), FIXED),
    }


# -- tables of other pages -------------------------------------------------------------------------


def errors_table() -> str:
    """Return the table of errors. Each has the first paragraph of its docstring, and the next step
    that it names."""
    rows: list[tuple[str, ...]] = []
    for name in sorted(errors.__all__, key=(errors.__doc__ or "").index):  # as its tree has them
        first, *others = inspect.cleandoc(getattr(errors, name).__doc__).split("\n\n")
        step = next(text for text in others if text.startswith("Next step: "))
        step = prose(step.removeprefix("Next step: "), "errors.md")
        rows.append((f"`{name}`", " ".join(first.split()), " ".join(step.split())))
    return table(("error", "meaning", "next step"), rows)


def events_table() -> str:
    """Return the table of log events. Each has its level and the comment above it."""
    source = inspect.getsource(log).partition("EVENTS = {")[2].partition("\n}")[0]
    said = re.findall(r"((?:^ +#.*\n)+) +\"(\w+)\"", source, re.MULTILINE)
    texts = {
        name: " ".join(re.sub(r"^ +# ?", "", text, flags=re.MULTILINE).split())
        for text, name in said
    }
    rows = [
        (f"`{name}`", logging.getLevelName(level), texts[name])
        for name, level in log.EVENTS.items()
    ]
    return table(("event", "level", ""), rows)


class Meter:
    """Records the name, kind, unit and description of each instrument."""

    def __init__(self) -> None:
        self.made: list[tuple[str, ...]] = []

    def get_meter(self, *_: object) -> Meter:
        return self

    def create_histogram(self, name: str, unit: str, about: str, **_: object) -> None:
        self.made.append((name, "histogram", unit, about))

    def create_counter(self, name: str, unit: str, about: str) -> None:
        self.made.append((name, "counter", unit, about))

    def create_observable_gauge(self, name: str, _: object, unit: str, about: str) -> None:
        self.made.append((name, "gauge", unit, about))


def metrics_table() -> str:
    """Return the table of instruments with their own descriptions."""
    meter = Meter()
    Instruments(meter)
    rows: list[tuple[str, ...]] = []
    for name, kind, unit, about in meter.made:
        text = re.sub(
            r"(?<![`\w.])((?:headrace|error)\.\w[\w.]*\w|enqueue_many|\(others\))", r"`\1`", about
        )
        rows.append((f"`{name}`", kind, f"`{unit}`" if unit.startswith("{") else unit, text))
    return table(("instrument", "kind", "unit", "besides the queue and its server"), rows)


def with_tables(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with its present tables."""
    text = (FOLDER / page).read_text("utf-8")
    for name, rows in tables.items():
        pattern = rf"(^<!-- Table by docs/reference.py: {name} -->\n).*?(^<!-- end -->$)"
        found = re.search(pattern, text, re.MULTILINE | re.DOTALL)
        if found is None:
            raise ValueError(f"{page} has no place for the table {name!r}")
        text = f"{text[: found.end(1)]}\n{rows}\n{text[found.start(2) :]}"
    return text


# -- the command line ------------------------------------------------------------------------------

CLI_INTRO = """\
# Command line

The program `headrace` comes with the extra `cli`; `python -m headrace` is the same.

```sh
python -m pip install 'headrace[cli] @ git+https://github.com/headrace/headrace'
headrace --help
```

```sh
headrace VERB QUEUE [ID…] [OPTIONS]
```

Options may stand before or after the verb. These are options of many commands:

"""

CLI_RULES = """
`headrace dead QUEUE`, `headrace schedules QUEUE` and `headrace flows` list.
`purge`, `delete`, `fail-worker`, `stop-worker`, `expire` and `dead purge` of everything ask on a terminal, and are refused without one, unless `--yes` is given.
An unknown queue is refused, unless `--create` is given to `enqueue`, `pause`, `schedules add` or `move`.

Results go to standard output; progress and errors to standard error, as lines that begin with `headrace:`.
On a terminal results are tables; elsewhere lines of fields between tabs, below their names.
In a locale without UTF-8, characters that it lacks are escaped.
Tables show the beginning of a payload; `--json` has it whole, as `payload`, or as `payload_hex` if it is not UTF-8.
A listing ends after 100 rows on a terminal, and says so; elsewhere it goes on to its end. `dead list` takes `--jsonl`, too, which is the same as `--json`.

| exit code | |
|---|---|
| 0 | done |
| 1 | not found, nothing done, or only a part; a run would not go on; the server is away or refuses; the demo found a difference, or `torture` a loss |
| 2 | wrong input: arguments, a line, an unknown queue, no server named |
| 130 | interrupted (Ctrl-C) |
| 141 | the reader of the output stopped reading |

`headrace --install-completion` installs completion for your shell; `--show-completion` prints the code.
"""

EXAMPLES = {
    "enqueue": """\
headrace enqueue emails ada@example.org bob@example.org --create
headrace enqueue emails --id welcome-ada --delay 60 --header tenant=x ada@example.org
headrace enqueue emails --priority 1 --file addresses.txt
zcat jobs.jsonl.gz | headrace enqueue emails --jsonl""",
    "work": """\
headrace work app:worker --processes 4
headrace work app:worker app:other_worker""",
    "relay": "headrace relay shop:outbox --database postgresql+psycopg://localhost/shop",
    "stats": "headrace stats emails --json",
    "redeclare": """\
headrace redeclare renders --fair tenant --weight gold=3 --limit tenant=5 --limit 50
headrace redeclare renders --limit tenant=20,free:2,trial:1
headrace redeclare renders --none""",
    "reshard": """\
headrace reshard ingest 64
headrace reshard ingest""",
    "trends": "headrace trends emails --every hour --limit 24 --json",
    "list": """\
headrace list emails --state waiting --limit 10
headrace list emails --json | jq -r 'select(.state == "delayed") | .id'""",
    "find": "headrace find emails welcome-ada welcome-bob",
    "result": "headrace result thumbnails 1700000000000-0 --timeout 30 > small.png",
    "events": "headrace events emails --follow --kind dead",
    "cancel": """\
headrace cancel emails welcome-ada
headrace cancel emails --payload ada@example.org
headrace cancel emails --state waiting --kind newsletter""",
    "reschedule": """\
headrace reschedule emails welcome-bob --delay 3600
headrace reschedule emails welcome-bob --at 2030-01-31T08:00:00+01:00""",
    "signal": """headrace signal orders order-1 approved '{"by": "ben"}'""",
    "move": "headrace move shop/orders shop/orders-later order-7 order-8",
    "drain": "headrace drain emails --timeout 600",
    "stop-worker": "headrace stop-worker emails mail-1 --yes",
    "doctor": "headrace doctor --url redis://cache:6379/0",
    "repair": "headrace repair emails --dry-run",
    "top": """\
headrace top --every 5 --read-only
headrace top --once emails --json""",
    "web": "headrace web --port 8701 --read-only",
    "protocol": "headrace protocol > headrace.json",
    "demo": "headrace demo --url redis://localhost:6379/0",
    "torture": """\
headrace torture redis://localhost:6380/0
headrace torture redis://localhost:6380/0 --kill 'docker kill redis; docker start redis' --every 20""",
    "dead list": "headrace dead emails",
    "dead redrive": "headrace dead redrive emails welcome-ada",
    "dead purge": "headrace dead purge emails --yes",
    "schedules add": """\
headrace schedules add reports nightly 'all of them' --cron '0 3 * * *' --timezone Europe/Berlin
headrace schedules add reports often --every 60 --missed skip""",
    "schedules list": "headrace schedules reports",
    "flows list": "headrace flows shop --state failed",
    "flows show": "headrace flows show shop order-7",
}

MORE = {
    "enqueue": [("one id", "settings.md#one-id"), ("prioritise jobs", "../how-to/prioritise-jobs.md"), ("the rule of costs", "../explanation/fairness.md#the-rule")],
    "work": [("metrics", "spans-and-metrics.md#metrics"), ("log events", "spans-and-metrics.md#log-events"), ("run in production", "../how-to/run-in-production.md")],
    "relay": [("together with another database", "../how-to/enqueue-in-a-transaction.md#together-with-another-database")],
    "shards": [("one queue on all masters", "../how-to/use-a-cluster.md#one-queue-on-all-masters")],
    "shares": [("fairness", "../explanation/fairness.md")],
    "redeclare": [("the declaration", "../explanation/fairness.md#the-declaration"), ("limits in shards", "../how-to/limit-concurrency.md#rules")],
    "reshard": [("change the number of shards", "../how-to/use-a-cluster.md#change-the-number-of-shards")],
    "trends": [("trends", "../how-to/watch-in-the-browser.md#trends")],
    "list": [("keep a history", "../how-to/wait-for-results.md#keep-a-history")],
    "signal": [("signals", "../how-to/durable-steps.md#signals")],
    "pause": [("operate a queue", "../how-to/operate-a-queue.md")],
    "dead redrive": [("durable steps", "../how-to/durable-steps.md#redrive")],
    "quiet-worker": [("quiet and stop workers", "../how-to/operate-a-queue.md#quiet-and-stop-workers")],
    "stop-worker": [("quiet and stop workers", "../how-to/operate-a-queue.md#quiet-and-stop-workers")],
    "schedules add": [("schedule jobs", "../how-to/schedule-jobs.md")],
    "doctor": [("servers that were not tried", "servers.md"), ("to watch an outbox", "../how-to/enqueue-in-a-transaction.md#to-watch-it")],
    "repair": [("repair a queue", "../how-to/repair-a-queue.md")],
    "top": [("watch queues in the terminal", "../how-to/watch-in-the-terminal.md")],
    "web": [("watch queues in the browser", "../how-to/watch-in-the-browser.md"), ("how payloads are shown", "../how-to/watch-in-the-browser.md#how-payloads-are-shown")],
    "protocol": [("its members", "redis-protocol.md#as-data")],
}  # fmt: skip

OF_MANY = ("in_json", "yes", "url", "namespace", "create")  # described once, above all commands


@frozen
class Parameter:
    """A parameter of a command, with its spelling, its default, its help, and its type."""

    name: str
    spelled: str
    usual: str
    meaning: str
    is_argument: bool
    required: bool
    many: bool
    hidden: bool

    @classmethod
    def of(cls, one: inspect.Parameter) -> Parameter:
        """Read the parameter from the signature of a command, as typer does."""
        kind, info = get_args(one.annotation)[:2]
        kinds = [*(get_args(kind) or ()), kind]
        required = one.default is one.empty
        many = any(get_origin(each) is list for each in kinds)
        place = isinstance(info, typer.models.ArgumentInfo)
        words = [
            word for word in (info.default, *(info.param_decls or ())) if isinstance(word, str)
        ]
        words = words or ["--" + one.name.replace("_", "-")]
        value = f" {info.metavar}" if info.metavar else ""
        spelled = (
            (info.metavar or one.name.upper())
            if place
            else "`, `".join(f"{word}{value}" for word in words)
        )
        given = getattr(one.default, "value", one.default)
        usual = (
            "" if required or given is None or given is False or not str(given) else f"`{given}`"
        )
        choices = [
            f"`{choice.value}`" for each in kinds if isinstance(each, EnumType) for choice in each
        ]
        bounds = [
            f"{word} {bound:,}"
            for word, bound in (("from", info.min), ("to", info.max))
            if bound is not None
        ]
        takes = ", ".join(choices) or " ".join(bounds).capitalize()
        meaning = " ".join(filter(None, (as_code(info.help or ""), takes and f"{takes}.")))
        return cls(
            one.name, f"`{spelled}`", usual, meaning, place, required, many, bool(info.hidden)
        )

    @property
    def row(self) -> tuple[str, ...]:
        """Return the row of the table."""
        return self.spelled, self.usual, self.meaning

    @property
    def called(self) -> str:
        """Return an argument as the line of usage has it."""
        name = self.spelled.strip("`") + "…" * self.many
        return name if self.required else f"[{name}]"


def as_code(text: str) -> str:
    """Return help as Markdown. Its options become code unless they are code already."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def commands(group: typer.Typer, before: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Return every command by its words, in the order of the help."""
    for one in group.registered_commands:
        if one.callback is not None:
            yield before + (one.name or one.callback.__name__.replace("_", "-")), one.callback
    for below in group.registered_groups:
        if below.typer_instance is not None:
            yield from commands(below.typer_instance, f"{before}{below.name} ")


def cli() -> str:
    """Return the page of the command line."""
    every = {
        words: [
            Parameter.of(one)
            for one in inspect.signature(command, eval_str=True).parameters.values()
        ]
        for words, command in commands(app)
    }
    texts = {words: inspect.cleandoc(command.__doc__ or "") for words, command in commands(app)}
    shared = {
        one.name: one for words in ("pause", "purge") for one in every[words] if one.name in OF_MANY
    }
    parts = [WRITTEN.format("the help of the commands") + "\n" + CLI_INTRO]
    parts += [table(("option", "default", ""), [shared[name].row for name in OF_MANY]), CLI_RULES]
    for words, parameters in every.items():
        usage = " ".join(
            [
                f"headrace {words}",
                *(one.called for one in parameters if one.is_argument),
                "[OPTIONS]",
            ]
        )
        parts.append(f"## headrace {words}\n\n```sh\n{usage}\n```\n")
        parts.append(as_code(texts[words]) + "\n")
        own = [
            one
            for one in parameters
            if one.name not in shared or one.meaning != shared[one.name].meaning
        ]
        if rows := [one.row for one in own if one.meaning and not one.hidden]:
            parts.append(table(("", "default", ""), rows))
        if words in EXAMPLES:
            parts.append(f"```sh\n{EXAMPLES[words]}\n```\n")
        if words in MORE:
            parts.append(
                f"More: {', '.join(f'[{title}]({link})' for title, link in MORE[words])}.\n"
            )
    return tidy("\n".join(parts))


def tidy(text: str) -> str:
    """Return the text of a page with one empty line at most between others."""
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def pages() -> dict[str, str]:
    """Return every page that this writes, by its path below the reference."""
    found = {
        **api(),
        "cli.md": cli(),
        "settings.md": with_tables("settings.md", settings_tables()),
        "errors.md": with_tables("errors.md", {"errors": errors_table()}),
        "spans-and-metrics.md": with_tables(
            "spans-and-metrics.md", {"metrics": metrics_table(), "events": events_table()}
        ),
    }
    return {**found, "pages.md": every_page({**found, "pages.md": "# All pages\n"})}


def main() -> int:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a page is stale"
    )
    found = pages()
    if not parser.parse_args().check:
        for path, text in found.items():
            (FOLDER / path).write_text(text, "utf-8")
        return 0
    stale = [
        path
        for path, text in found.items()
        if not (FOLDER / path).exists() or (FOLDER / path).read_text("utf-8") != text
    ]
    for path in stale:
        print(f"{FOLDER / path} is stale: run python docs/reference.py", file=sys.stderr)
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main())
