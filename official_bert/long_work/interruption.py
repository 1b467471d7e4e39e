"""Signals to a long command: it ends within seconds of Ctrl-C, SIGTERM or the loss of its terminal, even in compiled
code.
"""

import contextlib
import os
import signal
import sys
import threading
import time
import types

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEAN_UP_SECONDS = 1.0
stopping = threading.Event()  # set after a signal: threads in long work check it


def end_on_signals(message: str = "no output was written") -> None:
    """Makes signals raise SystemExit in the main thread, and end the process if clean-up takes longer than a second.

    Compiled code and slow disks keep Python from handling a signal, so a thread of its own watches for them.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    raised, swallowed, main_thread = threading.Event(), threading.Event(), threading.get_ident()

    def stop(number: int, _: types.FrameType | None) -> None:
        if raised.is_set():  # a second signal must not interrupt the clean-up
            return
        raised.set()
        # A library may replace the SystemExit by its own error (NumPy's tofile does).
        sys.excepthook = lambda *_: print(_text(number, message), file=sys.stderr)
        raise SystemExit(_text(number, message))

    def unraisable(unraised: "sys.UnraisableHookArgs") -> None:
        # A signal that comes while an object's __del__ runs ends there, with a traceback: Python does not pass it on.
        if isinstance(unraised.exc_value, SystemExit):
            swallowed.set()
        else:
            sys.__unraisablehook__(unraised)

    def watch() -> None:
        while (number := os.read(reading, 1)[0]) not in SIGNALS:
            pass
        stopping.set()
        end = time.monotonic() + CLEAN_UP_SECONDS
        while swallowed.wait(max(0.0, end - time.monotonic())):
            time.sleep(0.01)  # until the main thread has left the hook
            swallowed.clear()
            raised.clear()
            signal.pthread_kill(main_thread, number)  # a true signal: it ends a sleep too
        with contextlib.suppress(OSError):
            print(_text(number, message), file=sys.stderr, flush=True)
        os._exit(1)

    sys.unraisablehook = unraisable
    for number in SIGNALS:
        signal.signal(number, stop)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=watch, daemon=True).start()


def _text(number: int, message: str) -> str:
    return f"error: stopped by {signal.Signals(number).name}; {message}"


def check() -> None:
    """Raises InterruptedError if a signal has asked the process to end; for threads."""
    if stopping.is_set():
        raise InterruptedError("stopped")
