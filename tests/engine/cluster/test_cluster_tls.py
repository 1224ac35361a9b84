"""A cluster with TLS from end to end, who is refused, and the warning without it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.cluster.processes import LOOPBACK, Processes, end, listens_at, processes, start, wait_until
from tests.faults.running import leftovers, run_cli
from tests.warm.process import WarmProcess

SWEEPS = ("--tol", 0, "--max-iter", 2, "--ignore-features")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    folder = tmp_path_factory.mktemp("cluster")
    with processes(folder, 1, "--tls", folder / "tls") as found:
        yield found


def ended(process: WarmProcess) -> tuple[int | None, str]:
    """How a process ends by itself."""
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_a_ranking_over_tls_has_the_same_bytes(cluster: Processes, store: Path, tmp_path: Path) -> None:
    assert cluster.file.read_text().startswith('{"address": "tls://')
    where = ("--scheduler", cluster.file, *cluster.options)
    assert run_cli("--quiet", "rank", store, "--out", tmp_path / "alone.parquet", *SWEEPS).code == 0
    ran = run_cli("--quiet", "rank", store, "--out", tmp_path / "tls.parquet", *SWEEPS, *where)
    assert ran.code == 0, ran.stderr
    assert (tmp_path / "tls.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()


def test_who_has_no_certificate_is_refused_before_anything_is_written(
    cluster: Processes, store: Path, tmp_path: Path
) -> None:
    ran = run_cli("rank", store, "--out", tmp_path / "x.parquet", "--scheduler", cluster.file)
    assert ran.code == 2
    assert "this cluster asks for a certificate" in ran.stderr
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "x.parquet").exists()
    code, said = ended(start("worker", cluster.file))
    assert code == 2, said
    assert "this cluster asks for a certificate" in said


def test_a_certificate_of_another_authority_is_refused(cluster: Processes, store: Path, tmp_path: Path) -> None:
    from ecgl_scale.engine.cluster.tls import make_certificates

    make_certificates(tmp_path / "other")
    ran = run_cli(
        "rank", store, "--out", tmp_path / "x.parquet", "--scheduler", cluster.file, "--tls", tmp_path / "other"
    )
    assert ran.code == 3
    assert "no scheduler answers" in ran.stderr
    assert not (tmp_path / "x.parquet").exists()
    code, said = ended(start("worker", cluster.file, "--tls", tmp_path / "other"))
    assert code == 3, said
    assert "no scheduler answers" in said


def test_certificates_for_a_cluster_without_tls_are_refused(store: Path, tmp_path: Path, cluster: Processes) -> None:
    ran = run_cli("rank", store, "--out", tmp_path / "x.parquet", "--scheduler", "tcp://127.0.0.1:1", *cluster.options)
    assert ran.code == 2
    assert "this cluster is not encrypted" in ran.stderr


def test_a_web_server_is_taken_for_no_scheduler(store: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        ran = run_cli("rank", store, "--out", tmp_path / "x.parquet", "--scheduler", address)
        answering.join()
    assert ran.code == 3
    assert "who answers there is no scheduler" in ran.stderr
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_workers_of_a_scheduler_on_this_machine_listen_to_this_machine_alone(
    cluster: Processes, tmp_path: Path, is_encrypted: bool
) -> None:
    options = cluster.options if is_encrypted else ()
    with processes(tmp_path, 1, *options) as found:
        (worker,) = found.workers
        # its keeper, and the process that the keeper has started, which has pages besides
        assert wait_until(lambda: len(listens_at(worker.pid)) >= 3)
        assert {place.partition(":")[0] for place in listens_at(worker.pid)} == {LOOPBACK}


def own_address() -> str | None:
    """An address of this machine that others may reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        found: str = probe.getsockname()[0]
    return None if found.startswith("127.") else found


def test_plain_tcp_beyond_this_machine_is_warned_of_on_both_sides(store: Path, tmp_path: Path) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    cluster = Processes(tmp_path / "scheduler.json")
    scheduler = cluster.start_scheduler("--host", address)
    worker = cluster.start_worker()
    try:
        ran = run_cli(
            "--no-progress", "rank", store, "--out", tmp_path / "x.parquet", *SWEEPS, "--scheduler", cluster.file
        )
        assert ran.code == 0, ran.stderr
        assert "is open to everybody who can reach it" in ran.stderr
    finally:
        end(worker)
        _, said = end(scheduler)
    assert f"whoever reaches {address} can run code as this user" in said
    assert not cluster.file.exists(), "the scheduler says where it listens only while it does"
