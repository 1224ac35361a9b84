"""Two machines on one: network namespaces, each with a cable of its own (veth) to this one, of a given rate and delay.

It needs root. The rate is that of ``tc``'s token bucket; the delay is netem's, where the kernel has it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

RATE, DELAY = "1gbit", "5ms"


@dataclass(frozen=True)
class Machine:
    """One namespace, and the cable to it."""

    name: str
    cable: str
    """This side of it."""
    delay: str | None
    """How long a packet takes each way; None where the kernel cannot delay."""

    @property
    def under(self) -> list[str]:
        """What a command is put behind to run there."""
        return ["ip", "netns", "exec", self.name]

    def cable_bytes(self) -> int:
        """Bytes over the cable so far, both ways."""
        folder = Path("/sys/class/net") / self.cable / "statistics"
        return sum(int((folder / name).read_text(encoding="ascii")) for name in ("rx_bytes", "tx_bytes"))


def reason_without() -> str | None:
    """Why there can be no namespaces here; None where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no `ip`"
    probe = f"ecglprobe{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:
        return "`ip netns add` is refused here"
    _run("ip", "netns", "del", probe)
    return None


@contextmanager
def machines(number: int = 2) -> Iterator[tuple[str, list[Machine]]]:
    """The address of this machine for all of them, and the machines."""
    with ExitStack() as stack:
        made = []
        for index in range(number):
            name, cable = f"ecgl{os.getpid()}-{index}", f"ecgl{index}v{os.getpid() % 10_000}"
            here, there = f"10.231.{index}.1", f"10.231.{index}.2"
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "out", "netns", name)
            _run("ip", "addr", "add", f"{here}/30", "dev", cable)
            _run("ip", "link", "set", cable, "up")
            inside = ("ip", "netns", "exec", name)
            _run(*inside, "ip", "addr", "add", f"{there}/30", "dev", "out")
            for device in ("lo", "out"):
                _run(*inside, "ip", "link", "set", device, "up")
            _run(*inside, "ip", "route", "add", "default", "via", here)
            delays = [_slow_down(cable, ()), _slow_down("out", inside)]
            made.append(Machine(name, cable, delays[0] and delays[1]))
        yield "10.231.0.1", made


def _slow_down(device: str, inside: tuple[str, ...]) -> str | None:
    """Limit what leaves a device; returns the delay, if the kernel has one."""
    both = [*inside, "tc", "qdisc", "add", "dev", device, "root", "netem", "delay", DELAY, "rate", RATE]
    if subprocess.run(both, capture_output=True, check=False).returncode == 0:
        return DELAY
    _run(*inside, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", RATE, "burst", "1mb", "latency", "50ms")
    return None


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
