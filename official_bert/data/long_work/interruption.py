"""Ends a command soon after Ctrl-C, SIGTERM or the loss of its terminal, whatever it is doing."""

import contextlib
import os
import signal
import sys
import threading
import time

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEAN_UP_SECONDS = 1.0
stopping = threading.Event()  # set when a signal has come: threads in long work look at it


def end_on_signals(message: str = "no output was written") -> None:
    """Makes signals raise SystemExit in the main thread, and end the process if clean-up takes longer than a second.

    Compiled code and slow disks keep Python from handling a signal, so a thread of its own watches for them.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def stop(number: int, _) -> None:
        for other in SIGNALS:
            signal.signal(other, signal.SIG_IGN)  # once is enough: clean-up goes on
        # A library may put an error of its own in place of the SystemExit (NumPy's tofile does).
        sys.excepthook = lambda *_: print(_text(number, message), file=sys.stderr)
        raise SystemExit(_text(number, message))

    def watch() -> None:
        while (number := os.read(reading, 1)[0]) not in SIGNALS:
            pass
        stopping.set()
        time.sleep(CLEAN_UP_SECONDS)
        with contextlib.suppress(OSError):
            print(_text(number, message), file=sys.stderr, flush=True)
        os._exit(1)

    for number in SIGNALS:
        signal.signal(number, stop)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()


def _text(number: int, message: str) -> str:
    return f"error: stopped by {signal.Signals(number).name}; {message}"


def check() -> None:
    """Raises InterruptedError in a thread whose process is to end."""
    if stopping.is_set():
        raise InterruptedError("stopped")
