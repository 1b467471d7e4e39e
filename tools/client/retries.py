"""Retries within a request deadline: which failed requests are sent again, when, and until when."""

import dataclasses
import random
import time
from collections.abc import Callable
from typing import TypeVar

import urllib3

FIRST_PAUSE = 0.1  # seconds; each pause is twice the one before
MOST_ATTEMPTS = 5
Answer = TypeVar("Answer")


class ServingError(OSError):
    """A request without an answer: `code` is a gRPC status name, over REST too; `message` is the server's.

    UNAVAILABLE also stands for a server that cannot be reached, and for a connection that broke. `retry_after`: the
    seconds that the server asks for.
    """

    def __init__(self, code: str, message: str, retry_after: float = 0.0):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.retry_after = code, message, retry_after


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """How long, and how often."""

    timeout: float = 30.0  # seconds for all attempts of a request together
    attempts: int = MOST_ATTEMPTS

    def __post_init__(self) -> None:
        if self.timeout <= 0 or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise ValueError(
                f"expected a timeout above 0 and 1 to {MOST_ATTEMPTS} attempts, got {self.timeout} and {self.attempts}"
            )

    def call(self, send: Callable[[float], Answer]) -> Answer:
        """Returns what `send(deadline)` gives at the first attempt that does not end with UNAVAILABLE.

        A prediction changes nothing on the server, so one that may have run is also sent again. Raises the last
        ServingError, at once if the next attempt could not begin before the deadline (of `time.monotonic`);
        DEADLINE_EXCEEDED when time is over.
        """
        deadline = time.monotonic() + self.timeout
        for attempt in range(self.attempts):
            try:
                return send(deadline)
            except ServingError as error:
                if time.monotonic() >= deadline:
                    raise ServingError("DEADLINE_EXCEEDED", f"no answer within {self.timeout:g} s") from None
                # A little different for each client, so that they do not all come back at once.
                pause = max(FIRST_PAUSE * 2**attempt * random.uniform(0.8, 1.2), error.retry_after)
                if error.code != "UNAVAILABLE" or attempt + 1 == self.attempts or time.monotonic() + pause >= deadline:
                    raise
            time.sleep(pause)
        raise AssertionError("no attempt was made")


def read_retry_after(value: str) -> float:
    """Reads a `Retry-After` header, seconds or a date, as seconds from now; 0 for one that is neither."""
    try:
        return urllib3.util.Retry().parse_retry_after(value)
    except urllib3.exceptions.InvalidHeader:
        return 0.0
