"""Signals to a running training: SIGUSR1 saves a checkpoint, SIGTERM and Ctrl-C save one and end the run."""

from official_bert.command_line import announcing_signals

import contextlib
import signal
import types
from collections.abc import Callable, Iterator

FINISHING = "finishes the current steps or evaluation and saves; a second Ctrl-C stops without saving"


class Signals:
    """The requests made by signals: SIGUSR1 asks for a checkpoint, SIGTERM and SIGINT for a checkpoint and the end; a
    second SIGINT ends the run at once.
    """

    def __init__(self) -> None:
        self.terminated, self.stopped_by, self.save_wanted = False, "SIGTERM", False

    @contextlib.contextmanager
    def handled(self, say: Callable[[str], None]) -> Iterator[None]:
        """Handles the signals inside this context; says at once which work is finished before the run ends."""
        previous = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
        }
        try:
            with announcing_signals(lambda name: say(f"{name}: {FINISHING}")):
                yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: types.FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self.save_wanted = True
        elif number == signal.SIGINT and self.terminated:
            raise KeyboardInterrupt
        else:
            self.terminated, self.stopped_by = True, signal.Signals(number).name
