"""Retries within a request's deadline: which failed requests are sent again, and when."""

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
    """A request that failed: `code` is a gRPC status name, over REST too; `message` is the server's.

    UNAVAILABLE also stands for a server that cannot be reached, and for a broken connection. `retry_after` is the pause
    in seconds that the server asks for.
    """

    def __init__(self, code: str, message: str, retry_after: float = 0.0):
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.retry_after = code, message, retry_after


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """How long and how often a request is tried."""

    timeout: float = 30.0  # seconds for all attempts of a request together
    attempts: int = MOST_ATTEMPTS

    def __post_init__(self) -> None:
        if self.timeout <= 0 or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise ValueError(
                f"expected a timeout above 0 and 1 to {MOST_ATTEMPTS} attempts, got {self.timeout} and {self.attempts}"
            )

    def call(self, send: Callable[[float], Answer]) -> Answer:
        """Returns the result of the first `send(deadline)` that does not end with UNAVAILABLE.

        A request that may have reached the model is also sent again, because a prediction changes nothing on the
        server. Raises the last ServingError, at once if the next attempt could not begin before the deadline (of
        `time.monotonic`), and DEADLINE_EXCEEDED after it.
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
    """Returns a `Retry-After` header (seconds or a date) as seconds from now; 0 for any other value."""
    try:
        return urllib3.util.Retry().parse_retry_after(value)
    except urllib3.exceptions.InvalidHeader:
        return 0.0
