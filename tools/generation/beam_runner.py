"""Runs a Beam pipeline, and turns errors of the cluster into one line."""

import argparse
import contextlib
import re
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import CancelledError

import apache_beam as beam

from official_bert.storage.files import read_mapping

# Beam's options that say where a cluster listens; DASK_FILE: a file that says it
ADDRESSES = ("dask_client_address", "job_endpoint", "flink_master", "spark_master_url")
DASK_FILE, CONNECT_SECONDS = "dask_scheduler_file", 10
# errors of runners of types of their own, by their modules, which the runners import
FAILURES = (("distributed", "KilledWorker"), ("py4j.protocol", "Py4JError"))


def check_addresses(options: Sequence[str]) -> None:
    """Raises ValueError if nothing listens at an address in the options: runners would wait long or for ever."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in (*ADDRESSES, DASK_FILE):
        parser.add_argument(f"--{name}", default="")
    given = vars(parser.parse_known_args(options)[0])
    if path := given[DASK_FILE]:
        given[DASK_FILE] = str(read_mapping(path).get("address"))
    for name, address in given.items():
        if place := re.fullmatch(r"(?:\w+://)?\[?(.+?)]?:(\d+)/?", address):
            try:
                socket.create_connection((place[1], int(place[2])), CONNECT_SECONDS).close()
            except (OSError, OverflowError) as error:
                raise ValueError(f"--beam_options: --{name}: nothing listens at {address}: {error}") from None


def run(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline to its end; cancels it if this command is stopped. Raises ValueError if the runner fails."""
    try:
        result = pipeline.run()
        try:
            result.wait_until_finish()
        except SystemExit:
            with contextlib.suppress(NotImplementedError):  # not every runner can
                result.cancel()
            raise
    except _failures() as error:
        # the text may quote a worker's traceback, which ends with the error
        errors = re.findall(r"^\w+Error: .*", str(error), re.MULTILINE) or str(error).splitlines() or [repr(error)]
        raise ValueError(f"--beam_options: the runner failed: {errors[-1]}") from None


def _failures() -> tuple[type[Exception], ...]:
    """Returns the errors of runners that are neither ValueError nor OSError."""
    known = (getattr(sys.modules[module], name) for module, name in FAILURES if module in sys.modules)
    return (RuntimeError, CancelledError, *known)
