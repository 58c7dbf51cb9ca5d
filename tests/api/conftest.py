"""The real app over a real database, asked through httpx without a socket."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from tunedex.api import Settings, create_app
from tunedex.core.config import Config
from tunedex.core.device import Device, Environment
from tunedex.core.limits import Limits, Objective
from tunedex.core.measurement import Failure, FailureKind, Measurement, Policy
from tunedex.core.problem import Problem
from tunedex.core.row import Row
from tunedex.core.signature import BATCH, Attribute, DefaultRule, Dimension, Operand, Signature
from tunedex.db import Store, open_store
from tunedex.db.records import Stage, Sweep, SweepStatus, Trial

GPU = Device(
    kind="cuda",
    name="NVIDIA H200",
    multiprocessors=132,
    memory_bytes=140 * 2**30,
    compute_capability=(9, 0),
    l2_bytes=60 * 2**20,
    shared_memory_bytes=227 * 2**10,
)
CPU = Device(kind="cpu", name="Some <Model> & Co", multiprocessors=8, memory_bytes=2**34, vector="avx2")
ENVIRONMENT = Environment(driver="580.1", cuda="13.0", torch="2.13.0", triton="3.7.1", python="3.11")
FLOATS = ("float32", "bfloat16", "float16")

#: A kernel of a third party: two operands, an attribute, and a default on CUDA devices only.
SCALE = Signature(
    kernel="scale_rows",
    version="v1",
    formula="x * weight",
    dimensions=(BATCH, Dimension("rows"), Dimension("cols", "exact")),
    operands=(Operand("x", FLOATS), Operand("weight", FLOATS)),
    attributes=(Attribute("mode", ("plain", "signed"), "plain"),),
    defaults=(DefaultRule("cuda", {"implementation": "triton", "block": 128}),),
)


def problem(rows: int = 1024, **other: Any) -> Problem:
    return SCALE.problem({"rows": rows, "cols": 256, "dtype": "bfloat16", **other})


def row(time_us: float = 10.0, *, rank: int = 0, block: int = 64, **other: Any) -> Row:
    measured: dict[str, Any] = {"error": 1e-3, "lossless": True, "output_hash": f"b175{block}", "peak_memory_bytes": 0}
    measured |= {name: other.pop(name) for name in list(other) if name in measured}
    policy = other.pop("policy", Policy.EAGER_COLD)
    config = other.pop("config", Config("triton", {"block": block}))
    measurement = Measurement(time_us, time_us, time_us, 50, policy, **measured)
    values: dict[str, Any] = {
        "default_us": 15.0,
        "library_us": 20.0,
        "roofline_share": 0.75,
        "measured_at": "2026-01-31T12:34:56Z",
    }
    values |= {"kernel_version": "v1", "environment": ENVIRONMENT.key, **other}
    return Row(rank, config, measurement, **values)


def fill(store: Store) -> None:
    """A sweep with a measurement and a failure, and two problems published for the GPU: revision 1."""
    store.register_signatures([SCALE])
    store.register_device(GPU)
    store.register_environment(ENVIRONMENT)
    limits = Limits(Objective.MEMORY, max_error=0.01, max_memory=1 << 20, policy="graph")
    sweep = store.start_sweep(Sweep(GPU.key, ENVIRONMENT.key, {"preset": "quick"}, limits=limits))
    best = row()
    trial = Trial(problem(), GPU.key, ENVIRONMENT.key, "v1", best.config, best.measurement, Stage.FINAL, sweep)
    store.add_trial(replace(trial, max_error=0.01))
    failed = Failure(FailureKind.WRONG_RESULT, "y[3] is 7, not 8")
    store.add_trial(replace(trial, config=Config("triton", {"block": 32}), outcome=failed, stage=Stage.SEARCH))
    cheaper = row(12.0, rank=1, block=32, lossless=False, error=0.1, peak_memory_bytes=0)
    store.publish(GPU.key, {problem(): [best, cheaper], problem(2048): [row(30.0, block=256)]}, sweep=sweep)
    store.end_sweep(sweep, SweepStatus.DONE)


@dataclass(frozen=True)
class Site:
    """A running app: ``get`` and ``post`` are httpx's, the store is a second connection to its database."""

    app: FastAPI
    store: Store
    portal: BlockingPortal
    client: httpx.AsyncClient

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            return await self.client.request(method, path, **options)

        return self.portal.call(ask)

    def get(self, path: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> httpx.Response:
        return self.request("GET", path, params=parameters, **options)

    def post(self, path: str, document: Any, **options: Any) -> httpx.Response:
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        return self.request("POST", path, content=json.dumps(document), headers=headers, **options)

    def lookup(self, **parameters: Any) -> httpx.Response:
        """``GET /v1/lookup`` of `problem` on the GPU, changed by ``parameters``; one that is None is left out."""
        asked = {"kernel": "scale_rows", "device": GPU.key, "rows": 1024, "cols": 256, "dtype": "bfloat16"}
        asked |= parameters
        return self.get("/v1/lookup", {name: value for name, value in asked.items() if value is not None})


OpenSite = Callable[..., AbstractContextManager[Site]]


@contextmanager
def _open_site(path: Path, settings: Settings, client: tuple[str, int] = ("127.0.0.1", 50000)) -> Iterator[Site]:
    app = create_app(str(path), settings)
    with (
        open_store(str(path)) as store,
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(app.router.lifespan_context(app)),
    ):
        transport = httpx.ASGITransport(app, client=client)
        with portal.wrap_async_context_manager(httpx.AsyncClient(transport=transport, base_url="http://host")) as http:
            yield Site(app, store, portal, http)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database at the newest schema, made once: tests take copies."""
    path = tmp_path_factory.mktemp("empty") / "tunedex.db"
    open_store(str(path)).close()
    return path


@pytest.fixture
def open_site(tmp_path: Path, empty_database: Path) -> OpenSite:
    """Opens a site over an empty database of this test; the same one if it is called again."""

    def opened(settings: Settings | None = None, **options: Any) -> AbstractContextManager[Site]:
        if not (tmp_path / "tunedex.db").exists():
            shutil.copy(empty_database, tmp_path / "tunedex.db")
        return _open_site(tmp_path / "tunedex.db", settings or Settings(fresh_s=0), **options)

    return opened


@pytest.fixture
def empty_site(open_site: OpenSite) -> Iterator[Site]:
    with open_site() as site:
        yield site


@pytest.fixture
def site(empty_site: Site) -> Site:
    """A site over a database that `fill` has filled, which asks its database at every request."""
    fill(empty_site.store)
    return empty_site


@pytest.fixture(scope="session")
def quiet_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A filled site that every test of the session may ask and none may change."""
    with _open_site(tmp_path_factory.mktemp("site") / "tunedex.db", Settings()) as site:
        fill(site.store)
        yield site


# The values above, for tests: modules of tests do not import one another.


@pytest.fixture(name="fill")
def _fill() -> Callable[[Store], None]:
    return fill


@pytest.fixture(name="problem")
def _problem() -> Callable[..., Problem]:
    return problem


@pytest.fixture
def scale() -> Signature:
    return SCALE


@pytest.fixture
def publish() -> Callable[..., int]:
    """Publishes one row for a problem of the GPU, and gives the revision."""

    def published(store: Store, time_us: float, *, rows: int = 1024, of: Problem | None = None, **other: Any) -> int:
        return store.publish(GPU.key, {of or problem(rows): [row(time_us, **other)]})

    return published


@pytest.fixture
def cpu() -> Device:
    return CPU
