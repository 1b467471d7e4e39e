"""Statuses of refused requests: gRPC's names, used for REST too, and TF Serving's HTTP status for each."""

import types
from collections.abc import Mapping

# In the order of gRPC's numbers, from 1.
HTTP_STATUS: Mapping[str, int] = types.MappingProxyType(
    {
        "CANCELLED": 499,
        "UNKNOWN": 500,
        "INVALID_ARGUMENT": 400,
        "DEADLINE_EXCEEDED": 504,
        "NOT_FOUND": 404,
        "ALREADY_EXISTS": 409,
        "PERMISSION_DENIED": 403,
        "RESOURCE_EXHAUSTED": 429,
        "FAILED_PRECONDITION": 400,
        "ABORTED": 409,
        "OUT_OF_RANGE": 400,
        "UNIMPLEMENTED": 501,
        "INTERNAL": 500,
        "UNAVAILABLE": 503,
        "DATA_LOSS": 500,
        "UNAUTHENTICATED": 401,
    }
)

MOST_CHARACTERS = 1000


class RequestError(Exception):
    """A refused request: `code` is a gRPC status name, `message` tells what was expected and what came.

    The message is cut to the length that a gRPC status may have.
    """

    def __init__(self, code: str, message: str):
        message = message.encode("utf-8", "replace").decode("utf-8")  # JSON may quote half a character
        self.code, self.message = (
            code,
            message if len(message) <= MOST_CHARACTERS else message[:MOST_CHARACTERS] + "...",
        )
        super().__init__(self.message)


def invalid(message: str) -> RequestError:
    """Returns the error of an invalid request (INVALID_ARGUMENT), which clients should not repeat."""
    return RequestError("INVALID_ARGUMENT", message)


def answer_too_large(most_bytes: int) -> RequestError:
    """Returns the error for an answer larger than `--max_answer_bytes`."""
    return invalid(f"the answer would take more than {most_bytes} bytes: send fewer rows, or ask for fewer outputs")
