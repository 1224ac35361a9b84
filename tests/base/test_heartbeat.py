"""Signs of life: heard while they come, and missed when they end, stop, or come from another."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import pytest

from ecgl_scale.base.heartbeat import Heartbeat, Listener
from ecgl_scale.base.signals import told_of_signals


def test_it_is_heard_until_it_ends(tmp_path: Path) -> None:
    end = threading.Event()
    with Heartbeat(tmp_path / "beat", end, every_seconds=0.01) as heartbeat:
        listener = Listener(heartbeat.path, heartbeat.token, silent_seconds=5)
        assert listener.is_alive
        assert heartbeat.path.read_text().startswith(heartbeat.token)
        end.set()
    assert not listener.is_alive
    assert [path.name for path in tmp_path.iterdir()] == ["beat"]


def test_the_heartbeat_of_another_is_none(tmp_path: Path) -> None:
    first = Heartbeat(tmp_path / "beat", threading.Event())
    with first:
        listener = Listener(first.path, first.token)
        assert listener.is_alive
        with Heartbeat(tmp_path / "beat", threading.Event()):
            assert not listener.is_alive


def test_silence_is_death_only_after_a_while(tmp_path: Path) -> None:
    (tmp_path / "beat").write_text("me 1")
    listener = Listener(tmp_path / "beat", "me", silent_seconds=0.05)
    assert listener.is_alive
    (tmp_path / "beat").unlink()
    assert listener.is_alive
    time.sleep(0.06)
    assert not listener.is_alive


def test_threads_are_told_of_a_signal_before_its_handler_raises() -> None:
    told: list[str] = []

    def handle(*_: object) -> None:
        told.append("handler")
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR2, handle)
    try:
        with pytest.raises(KeyboardInterrupt), told_of_signals(lambda: told.append("threads")):
            signal.raise_signal(signal.SIGUSR2)
        assert signal.getsignal(signal.SIGUSR2) is handle
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert told == ["threads", "handler"]
