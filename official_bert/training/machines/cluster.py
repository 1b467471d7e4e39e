"""The flags for a run's devices, and the workers of a cluster. It is the only reader of the environment: TF_CONFIG."""

from official_bert.command_line import JOIN_SECONDS, error_in_one_line

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any, Protocol

from official_bert.dotted_names import by_name

HERE = "--strategy=multi_worker: "


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """The flags that choose a run's devices."""

    strategy: str = "one_device"
    num_cpu_devices: int = 0  # mirrored without GPUs: so many logical CPU devices
    worker_hosts: str = ""  # multi_worker without TF_CONFIG: host:port,host:port,...
    task_index: int = 0
    join_seconds: float = JOIN_SECONDS  # multi_worker: for the other workers to start
    tpu_name: str = ""
    tpu_zone: str = ""
    gcp_project: str = ""


def workers_of(placement: Placement) -> tuple[list[str], int]:
    """Returns the host:port of each worker of the cluster, the first worker's first, and the index of this worker.

    Raises ValueError if the flags or TF_CONFIG do not describe them.
    """
    if placement.worker_hosts:
        hosts = placement.worker_hosts.split(",")
        if not 0 <= placement.task_index < len(hosts):
            raise ValueError(
                f"--task_index: expected 0 to {len(hosts) - 1} for {len(hosts)} hosts, got {placement.task_index}"
            )
        return hosts, placement.task_index
    text = os.environ.get("TF_CONFIG", "")
    try:
        config = json.loads(text or "{}")
        cluster, kind, index = config["cluster"], config["task"].get("type", "worker"), int(config["task"]["index"])
        addresses = len(cluster[kind])
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise ValueError(
            f"{HERE}expected --worker_hosts and --task_index, or TF_CONFIG with cluster.worker "
            f"and task.index, got TF_CONFIG={text!r}"
        ) from None
    if others := sorted({kind, *cluster} - {"chief", "worker"}):
        raise ValueError(f"TF_CONFIG: expected a cluster of worker and chief alone, got {', '.join(others)}")
    if not 0 <= index < addresses:
        raise ValueError(f"TF_CONFIG: expected task.index from 0 to {addresses - 1}, got {index}")
    chiefs = list(cluster.get("chief", ()))
    return [*chiefs, *cluster.get("worker", ())], index + (len(chiefs) if kind == "worker" else 0)


def is_first_worker(placement: Placement) -> bool:
    """Returns whether this process writes results: true for the chief or, in a cluster without one, worker 0, and
    outside a cluster.
    """
    return placement.strategy != "multi_worker" or workers_of(placement)[1] == 0


class Meeting(Protocol):
    """The methods of `meeting.py` that the core calls."""

    leave: Callable[[str], None]
    agree: Callable[[], None]


def meet(placement: Placement, check: Callable[[], Any] = lambda: None) -> None:
    """Waits for the other workers of a cluster; `check` raises ValueError or OSError if this worker cannot begin.

    Call it before TensorFlow is imported. Outside a cluster it does nothing. Raises ValueError if a worker has not
    started within `join_seconds`, with its host, and for the error of another worker's `check`.
    """
    if placement.strategy != "multi_worker":
        return
    join: Callable[[Placement], Meeting] = by_name("official_bert.training.machines.meeting:join")
    meeting = join(placement)
    try:
        check()
    except (ValueError, OSError) as error:
        meeting.leave(error_in_one_line(error))
        raise
    meeting.agree()
