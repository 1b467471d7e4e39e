"""Failed requests: which are sent again, when, and until when."""

import asyncio
import dataclasses
import datetime
import email.utils
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds; each pause is twice the one before
MOST_ATTEMPTS = 5
Answer = TypeVar("Answer")


class ServingError(OSError):
    """A request without an answer: `code` is a gRPC status name, over REST too; `message` is the server's.

    `is_refused`: the model did not see it, and might answer later. `is_lost`: the connection broke, and nobody knows.
    `retry_after`: the seconds that the server asks for.
    """

    def __init__(self, code: str, message: str, *, is_refused: bool = False, is_lost: bool = False, retry_after: float | None = None):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
        self.is_refused, self.is_lost, self.retry_after = is_refused, is_lost, retry_after


@dataclasses.dataclass(frozen=True)
class Patience:
    """How long, and how often."""

    timeout: float = 30.0  # seconds for all attempts of a request together
    attempts: int = MOST_ATTEMPTS
    repeat_lost: bool = False  # also send again what may have run

    def __post_init__(self):
        if self.timeout <= 0 or not 1 <= self.attempts <= MOST_ATTEMPTS:
            raise ValueError(f"expected a timeout above 0 and 1 to {MOST_ATTEMPTS} attempts, got {self.timeout} and {self.attempts}")


async def persist(once: Callable[[float], Awaitable[Answer]], patience: Patience) -> Answer:
    """Returns what `once(seconds that are left)` gives at the first attempt that does not fail for the moment only.

    Raises the last ServingError, at once if the next attempt could not begin in time; DEADLINE_EXCEEDED when time is over.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience.timeout
    for attempt in range(1, patience.attempts + 1):
        try:
            async with asyncio.timeout_at(deadline):
                return await once(deadline - loop.time())
        except TimeoutError:
            raise ServingError("DEADLINE_EXCEEDED", f"no answer within {patience.timeout:g} s") from None
        except ServingError as error:
            may_repeat = error.is_refused or (error.is_lost and patience.repeat_lost)
            pause = max(_pause(attempt), error.retry_after or 0)
            if not may_repeat or attempt == patience.attempts or loop.time() + pause >= deadline:
                raise
        await asyncio.sleep(pause)
    raise AssertionError("no attempt was made")


def _pause(attempt: int) -> float:
    """Seconds after the first, second, ... attempt, a little different for each client."""
    return min(FIRST_PAUSE * 2 ** (attempt - 1), LONGEST_PAUSE) * random.uniform(0.8, 1.2)


def read_retry_after(value: str | None) -> float | None:
    """Reads a `Retry-After` header, seconds or a date; None for one that is neither."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        moment = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return max(0.0, (moment - datetime.datetime.now(datetime.UTC)).total_seconds())
