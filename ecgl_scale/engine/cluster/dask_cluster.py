"""What we ask of Dask: place a unit, say when it is done, notice who is lost.

Nothing is kept in Dask: a unit's answer is fetched when it is there and released, and rows never travel through it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import dask.config
from distributed import Client, Future, KilledWorker, Security, get_worker
from distributed.comm import CommClosedError

from ecgl_scale.engine.cluster.dask_processes import (
    PROCESS_CONFIG,
    START_SECONDS,
    local_cluster,
    security_for,
    start_errors,
    start_missing,
)
from ecgl_scale.engine.cluster.failure import pack_error_text
from ecgl_scale.engine.cluster.handshake import WorkerFacts, describe_process
from ecgl_scale.engine.cluster.settings import ClusterSettings, scheduler_address
from ecgl_scale.engine.cluster.unit_runner import UnitRunner
from ecgl_scale.errors import ClusterLostError

FETCH_SECONDS = 5.0
"""So long is waited for an answer that is there, before it is asked whether its worker is."""
CLOSE_SECONDS = 10.0
"""So long is waited for a scheduler to say goodbye: it may be gone."""


def run_unit(job: str, blocks: str, given: str) -> dict[str, Any]:
    """Run a unit on a Dask worker, whose open work stays with it from unit to unit."""
    worker = get_worker()
    return {**_runner_of(worker).run(job, blocks, given), "worker": str(worker.name)}


async def close_job_on_worker(name: str, dask_worker: Any) -> None:
    """Let go of a job's work on a Dask worker; a unit under way is waited for, while the worker goes on to answer."""
    await asyncio.to_thread(_runner_of(dask_worker).close, name)


def describe_worker(files: dict[str, int], dask_worker: Any) -> dict[str, Any]:
    """What a Dask worker says of itself."""
    return describe_process(str(dask_worker.name), files)


def _runner_of(worker: Any) -> UnitRunner:
    runner: UnitRunner = worker.__dict__.setdefault("ecgl_unit_runner", UnitRunner())
    return runner


@dataclass
class DaskCluster:
    """The workers of a Dask cluster."""

    client: Client
    start_missing: Callable[[], Any] | None = None
    """How workers of our own are started anew that Dask has given up: it does so where one is killed as it starts."""
    facts: tuple[WorkerFacts, ...] = ()
    _futures: dict[str, tuple[Future, str]] = field(default_factory=dict)
    """By key, with the address of who works on it."""

    @property
    def dashboard(self) -> str | None:
        """Where Dask shows what it does, if it does."""
        link: str | None = self.client.dashboard_link
        return link

    def describe(self, files: Mapping[str, int]) -> list[WorkerFacts]:
        """What each worker says of itself."""
        with _lost_cluster():
            found = self.client.run(describe_worker, dict(files))
        return [WorkerFacts(**{**facts, "unseen": tuple(facts["unseen"])}) for _, facts in sorted(found.items())]

    def run_on_all(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Mapping[str, Any]:
        """What a function of ours returns on each worker, by the worker's name."""
        with _lost_cluster():
            names, found = self.names(), self.client.run(function, *arguments)
        return {names.get(address, address): answer for address, answer in found.items()}

    def names(self) -> Mapping[str, str]:
        """Addresses and names of those that are there and take units: one that was asked to leave does not."""
        with _lost_cluster():
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
        if self.start_missing is not None and len(workers) < len(self.facts):
            self.start_missing()
        return {address: str(at["name"]) for address, at in workers.items() if at["status"] == "running"}

    def last_heard(self) -> Mapping[str, float]:
        """When the scheduler last had word of each worker: they send it every few seconds, whatever they do."""
        with _lost_cluster():
            workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {str(worker["name"]): float(worker["last_seen"]) for worker in workers.values()}

    def send(self, key: str, address: str, unit: tuple[str, str, str], on_done: Callable[[str], None]) -> None:
        """Submit a unit for one worker alone: who does it instead of a lost one we decide ourselves.

        With ``allow_other_workers`` Dask forgets a task whose worker is lost when there is no other at that moment:
        it runs it nowhere, also when others have come.
        """
        future = self.client.submit(run_unit, *unit, key=key, pure=False, workers=[address], retries=0)
        self._futures[key] = future, address
        future.add_done_callback(lambda _: on_done(key))

    def fetch(self, key: str) -> dict[str, Any] | None:
        """The answer; Dask's own failures are told apart."""
        future, address = self._futures.pop(key)
        try:
            while True:
                try:
                    with _lost_cluster():
                        answer: dict[str, Any] = future.result(timeout=FETCH_SECONDS)
                        return answer
                except TimeoutError:  # it waits for its worker, which is there or will not come back
                    self.check()
                    if address not in self.names():
                        return None
        except KilledWorker:
            return None
        except ClusterLostError:
            raise
        except Exception as error:  # Dask could not run it at all: a broken installation on that worker, say
            return {"error": pack_error_text(error), "worker": address}
        finally:
            future.release()

    def cancel(self, key: str) -> None:
        """Forget a unit."""
        if key in self._futures:
            self._futures.pop(key)[0].release()

    def close_job(self, name: str) -> None:
        """Let all workers that answer close a job; a worker that is lost has closed it."""
        if self.client.status == "running":
            with suppress(ClusterLostError), _lost_cluster():
                self.client.run(close_job_on_worker, name, wait=False, on_error="ignore")

    def check(self) -> None:
        """Raise where the connection is closed for good."""
        if self.client.status != "running":
            raise ClusterLostError("the scheduler of the cluster is gone")


@contextmanager
def _lost_cluster() -> Iterator[None]:
    """Tell a cluster that is gone from every other error."""
    try:
        yield
    except (CancelledError, asyncio.CancelledError, CommClosedError, ConnectionError) as error:
        raise ClusterLostError("the scheduler of the cluster is gone") from error


@contextmanager
def connect(settings: ClusterSettings) -> Iterator[DaskCluster]:
    """The cluster that a user asked for; what was started for it ends with the ``with``."""
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(PROCESS_CONFIG))
        stack.enter_context(_silent_client())
        if settings.workers is not None:
            cluster = stack.enter_context(local_cluster(settings))
            client = stack.enter_context(_client(cluster, cluster.security))
            yield DaskCluster(client, partial(start_missing, cluster))
        else:
            address = scheduler_address(str(settings.scheduler))
            yield DaskCluster(stack.enter_context(_client(address, security_for(address, settings.tls))))


@contextmanager
def _silent_client() -> Iterator[None]:
    """A client logs a trace when its scheduler is gone, of which we say one line."""
    logger = logging.getLogger("distributed.client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def _client(address: Any, security: Security | None) -> Iterator[Client]:
    with ExitStack() as stack:
        with start_errors(address):
            client = Client(address, security=security, timeout=START_SECONDS, set_as_default=False)
            stack.callback(_close, client)
            client.wait_for_workers(1, timeout=START_SECONDS)
        yield client


def _close(client: Client) -> None:
    with suppress(TimeoutError):
        client.close(timeout=CLOSE_SECONDS)
