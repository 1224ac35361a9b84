"""Which rank this process is, as its launcher says in the environment: torchrun, srun, mpirun, or we ourselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ecgl_scale.config.schema import RunConfig
from ecgl_scale.errors import UsageError
from ecgl_scale.learn.lanes import NUM_LANES

Environment = Mapping[str, str]

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS"),
    "mpirun (Open MPI)": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "mpirun (PMI)": ("PMI_RANK", "PMI_SIZE"),
}
"""Where each launcher says which process this is, and of how many; the first that is found counts."""
FIRST_SLURM_PORT, NUM_SLURM_PORTS = 20_000, 20_000


@dataclass(frozen=True)
class Launch:
    """A rank that a launcher has started, and where the first rank is to be found."""

    rank: int
    size: int
    host: str
    port: int
    has_store: bool = False
    """Whether the launcher has a store at that address already, as torchrun has."""
    attempt: str = "0"
    """Tells this start from earlier ones that the same launcher made."""


def find_launch(num_ranks: int, environment: Environment) -> Launch | None:
    """The rank of this process; None where nobody has started several, so that we start the others ourselves.

    Raises
    ------
    UsageError
        The launcher has started another number of processes, or does not say where the first is.
    """
    for launcher, (rank_key, size_key) in LAUNCHERS.items():
        rank, size = environment.get(rank_key, ""), environment.get(size_key, "")
        if not (rank.isdigit() and size.isdigit()) or int(size) == 1:
            continue
        if launcher == "srun" and not _slurm_address(environment):
            continue  # inside a batch script, but not under srun
        if int(size) != num_ranks:
            raise UsageError(
                f"{launcher} has started {size} processes, the run has {num_ranks} ranks",
                where=f"{size_key}={size}",
                fix=f"give --ranks {size}, or start {num_ranks} processes",
            )
        host, port = _address(launcher, environment)
        return Launch(
            int(rank),
            int(size),
            host,
            port,
            has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        )
    return None


def _address(launcher: str, environment: Environment) -> tuple[str, int]:
    host, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if launcher == "srun":
        host = _slurm_address(environment)
        job = environment.get("SLURM_JOB_ID", "0")
        port = port or str(FIRST_SLURM_PORT + int(job) % NUM_SLURM_PORTS)
    if not host or not port.isdigit():
        raise UsageError(
            f"{launcher} does not say where the first rank is",
            where=f"MASTER_ADDR={host}, MASTER_PORT={port}",
            fix="export MASTER_ADDR (the first rank's machine, by name or address) and MASTER_PORT (a free port there)",
        )
    return host, int(port)


def _slurm_address(environment: Environment) -> str:
    return environment.get("MASTER_ADDR") or environment.get("SLURM_LAUNCH_NODE_IPADDR", "")


def refuse_unshared(config: RunConfig) -> None:
    """Refuse, by a ``UsageError``, what ranks cannot share."""
    learn, num_ranks = config.learn, config.engine.ranks
    if num_ranks > NUM_LANES:
        raise UsageError(f"{num_ranks} ranks", expected=f"at most {NUM_LANES}: an epoch is cut into so many lanes")
    if learn.batching == "minibatch":
        raise UsageError(
            f"learn.batching is minibatch, and {num_ranks} ranks share the one step of a full batch",
            fix="set learn.batching=full, or leave --ranks out",
        )
    if learn.train_as == "gcn":
        raise UsageError(
            f"learn.train_as is gcn, and {num_ranks} ranks share rows that do not need each other",
            fix="set learn.train_as=mlp, or leave --ranks out",
        )
