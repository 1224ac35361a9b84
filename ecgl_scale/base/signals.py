"""Work that a signal must not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

RAISING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)


@contextmanager
def uninterrupted() -> Iterator[list[int]]:
    """Hold back Ctrl-C and requests to stop, whose handlers raise wherever they meet us, until the end.

    What it gives is a list that has the number of each signal that has arrived meanwhile.
    """
    arrived: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield arrived  # handlers run in the main thread only
        return
    handlers = {number: signal.getsignal(number) for number in RAISING}
    raising = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in raising:
        signal.signal(number, lambda arrived_number, _: arrived.append(arrived_number))
    try:
        yield arrived
    finally:
        for number, handler in raising.items():
            signal.signal(number, handler)
        for arrived_number in arrived:
            signal.raise_signal(arrived_number)


@contextmanager
def told_of_signals(tell: Callable[[], None]) -> Iterator[None]:
    """Call ``tell`` when a signal arrives whose handler raises, just before it does.

    What is raised in the main thread waits, on its way out, for the threads that it has started: they must know.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in RAISING}

    def handle(number: int, frame: FrameType | None) -> None:
        tell()
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    raising = [number for number, handler in handlers.items() if callable(handler)]
    for number in raising:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in raising:
            signal.signal(number, handlers[number])
