"""One trace over processes and languages. It has the services of the documentation with Node before
and behind them."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from headrace import Queue
from tests.interop.conftest import Agent
from tests.support.servers import Server

SCRIPT = Path(__file__).parents[2] / "docs" / "trace.py"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    """Import docs/trace.py, which is in no package."""
    spec = spec_from_file_location("headrace_docs_trace", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_services_of_the_page_share_one_trace(
    docs: ModuleType, newest: Server, tmp_path: Path
) -> None:
    spans = docs.run(tmp_path, HEADRACE_URL=newest.url)
    names = {span["context"]["span_id"]: span["name"] for span in spans}
    tree = [
        f"{span['resource']['attributes']['service.name']}: {span['name']} < {names.get(span['parent_id'])}"
        for span in spans
        if not span["name"].startswith("receive")
    ]
    assert sorted(tree) == [
        "mailer: process letters < send letters",
        "mailer: process orders < send orders",
        "mailer: process orders < send orders",
        "mailer: send letters < process orders",
        "shop: POST /orders < None",
        "shop: send orders < POST /orders",
    ]
    (trace,) = {
        span["context"]["trace_id"] for span in spans if not span["name"].startswith("receive")
    }
    picture = docs.drawn(spans)
    assert picture.count("<rect") == 3 + 6  # the ground, two services, six spans
    assert picture.count("<path") == 1  # the second attempt is linked to the first
    assert ("ConnectionError" in picture, trace[2:] in picture) == (True, True)


def test_node_before_and_behind_python(
    docs: ModuleType, agents: Callable[..., Agent], newest: Server, tmp_path: Path
) -> None:
    """Node sends the order with its own context. Python's two steps and Node's own end are in the
    same trace."""
    first = agents(newest, "orders")
    first("enqueue", [{"payload": "a wheel", "headers": {"traceparent": PARENT}}])
    mailer = docs.services()["mailer.py"].replace(
        '@worker.handler("letters")', '@worker.handler("unused")'
    )
    mailer = mailer.replace("thank you for ", "").replace(
        "letters.enqueue(", "worker.stop(wait=False)\n    letters.enqueue("
    )
    for name, text in (docs.services() | {"mailer.py": mailer, "shop.py": ""}).items():
        (tmp_path / name).write_text(text, "utf-8")
    docs.services = lambda: {
        name: (tmp_path / name).read_text("utf-8")
        for name in ("telemetry.py", "mailer.py", "shop.py")
    }
    spans = docs.run(tmp_path, HEADRACE_URL=newest.url)
    (job,) = agents(newest, "letters")("lease", "w", 10, {"ttl": 70_000})["jobs"]
    sent = next(span for span in spans if span["name"] == "send letters")
    assert job["headers"]["traceparent"].split("-")[1:3] == [TRACE, sent["context"]["span_id"][2:]]
    assert {s["context"]["trace_id"] for s in spans if s["name"] == "process orders"} == {
        f"0x{TRACE}"
    }
    with Queue("orders", url=newest.url) as orders:
        assert orders.counts().completed == 1
