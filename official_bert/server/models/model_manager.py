"""Manages the versions of models: watches their folders, loads new versions, unloads old ones.

The old version is unloaded only after the new one is loaded and its own last request is answered. A folder is loaded
only if it did not change between two polls, so a version that is still being copied is never loaded.
"""

import contextlib
import dataclasses
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from official_bert.server.metrics import Metrics
from official_bert.server.models.servable import Servable
from official_bert.server.models.version_folders import fingerprint, model_versions, why_no_versions
from official_bert.server.server_config import ServedModelConfig
from official_bert.server.statuses import RequestError, invalid

LOG = logging.getLogger("official_bert.server")
MOST_ENDED = 8  # versions that are remembered after their end, a model
Load = Callable[[str, int, str], Servable]


@dataclasses.dataclass
class Version:
    """A version of a model and its state (the states of TF Serving)."""

    number: int
    folder: str
    fingerprint: Any = None
    state: str = "START"
    error: str = ""
    servable: Servable | None = None
    users: int = 0
    since: float = 0.0  # of `time.monotonic`: when its loading began


class ModelManager:
    """Watches the folders of models; `using` lends a version to a request. Thread-safe."""

    def __init__(self, models: Sequence[ServedModelConfig], load: Load, metrics: Metrics, settle_seconds: float = 1.0):
        self.models = {model.name: model for model in models}
        self._load, self._metrics, self._settle_seconds = load, metrics, settle_seconds
        self._versions: dict[str, dict[int, Version]] = {name: {} for name in self.models}
        self._changed = threading.Condition()
        self._polling = threading.Lock()
        self._asleep = {model.name for model in models if model.on_demand}
        self._is_starting = True

    def poll(self) -> None:
        """Polls the folders once: loads complete new versions, then unloads those that the policy no longer chooses."""
        with self._polling:
            for model in self.models.values():
                self._poll_model(model)
            self._is_starting = False

    def is_asleep(self, name: str) -> bool:
        """Returns whether a model is loaded on demand and has had no request yet."""
        return name in self._asleep

    def wake(self, name: str) -> None:
        """Loads a model that is loaded on demand."""
        with self._polling:
            self._asleep.discard(name)
            self._poll_model(self.models[name])

    def _poll_model(self, model: ServedModelConfig) -> None:
        versions = self._versions[model.name]
        numbers = self._load_chosen(model)
        states = {versions[number].state for number in numbers}
        # An old version answers until its successor does, even if its folder is deleted.
        if "AVAILABLE" in states or (numbers and "START" not in states):
            for version in list(versions.values()):
                if version.state == "AVAILABLE" and version.number not in numbers:
                    self._end(model.name, version)
        ended = [number for number, version in versions.items() if version.state == "END" and number not in numbers]
        with self._changed:
            for number in ended[:-MOST_ENDED]:
                del versions[number]

    def _load_chosen(self, model: ServedModelConfig) -> list[int]:
        """Loads the versions that the policy chooses, and returns their numbers.

        If one fails, the next lower one is chosen.
        """
        folders = {
            number: os.path.join(model.base_path, name) for number, name in model_versions(model.base_path).items()
        }
        failed: set[int] = set()
        while True:
            numbers = model.chosen(set(folders) - failed)
            for number in numbers:
                self._load_if_complete(model.name, number, folders[number])
            failing = {number for number in numbers if self._versions[model.name][number].error}
            if not failing:
                return numbers
            failed |= failing

    def _load_if_complete(self, name: str, number: int, folder: str) -> None:
        """Loads a version whose folder is complete, unless it is loaded, or has failed and has not changed since."""
        versions = self._versions[name]
        version = versions.get(number)
        if version is not None and version.state in ("LOADING", "AVAILABLE", "UNLOADING"):
            return
        state = fingerprint(folder)
        is_unloaded = version is not None and version.state == "END" and not version.error
        if version is None or version.fingerprint != state or is_unloaded:
            with self._changed:
                version = versions[number] = Version(number, folder, state)
            if state is None or time.time() - state[0] < self._settle_seconds:
                return  # perhaps still being written: look again
        if version.state == "START" and state is not None and name not in self._asleep:
            self._start(name, version)

    def _start(self, name: str, version: Version) -> None:
        """Loads a version; a failure becomes its status and does not affect other versions."""
        version.state, version.since = "LOADING", time.monotonic()
        try:
            servable = self._load(name, version.number, version.folder)
        except Exception as error:
            LOG.warning("%s version %d: %s", name, version.number, error)
            with self._changed:
                version.state, version.error = "END", " ".join(str(error).split())
            return
        with self._changed:
            version.servable, version.state, version.error = servable, "AVAILABLE", ""
        self._metrics.version_available(name, version.number, True)

    def _end(self, name: str, version: Version, timeout: float | None = None) -> None:
        """Unloads a version: refuses new requests, waits up to `timeout` seconds for running ones, and frees its
        memory.
        """
        with self._changed:
            version.state = "UNLOADING"
            self._changed.wait_for(lambda: not version.users, timeout)
            servable, version.servable = version.servable, None
        self._metrics.version_available(name, version.number, False)
        if servable is not None:
            servable.close()
        version.state = "END"
        del servable
        gc.collect()  # graphs and sessions refer to each other
        LOG.info("%s version %d: unloaded", name, version.number)

    @contextlib.contextmanager
    def using(self, name: str, version: int | None = None, label: str | None = None) -> Iterator[Servable]:
        """Yields the servable of a version, a label, or the highest version. It stays loaded inside the block.

        Raises RequestError: NOT_FOUND; UNAVAILABLE while it is being loaded; INVALID_ARGUMENT for an unknown label or
        an empty name.
        """
        with self._changed:
            entry = self._find(name, version, label)
            entry.users += 1
        try:
            assert entry.servable is not None
            yield entry.servable
        finally:
            with self._changed:
                entry.users -= 1
                self._changed.notify_all()

    def _find(self, name: str, number: int | None, label: str | None) -> Version:
        if not name:
            raise invalid("ModelSpec has no name specified.")
        if label is not None:
            number = self._labelled(name, label)
        available = {key: entry for key, entry in self._versions.get(name, {}).items() if entry.state == "AVAILABLE"}
        version = max(available, default=None) if number is None else number
        if version not in available:
            self._check_loading(name, number)
            requested = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RequestError("NOT_FOUND", f"Servable not found for request: {requested}")
        return available[version]

    def _check_loading(self, name: str, number: int | None) -> None:
        """Raises RequestError UNAVAILABLE if a version will soon be loaded, so that clients try again."""
        versions = self._versions.get(name, {})
        coming = [entry for entry in versions.values() if number in (None, entry.number)]
        is_next = self._is_starting and name in self.models and not versions
        if is_next or any(entry.state in ("START", "LOADING") for entry in coming):
            raise RequestError("UNAVAILABLE", f"model {name}: {self._why_waiting(name)}")

    def _labelled(self, name: str, label: str) -> int:
        model = self.models.get(name)
        if model is None or label not in model.labels:
            raise invalid(f"Unrecognized servable version label: {label}")
        return model.labels[label]

    def statuses(self, name: str, number: int | None = None) -> list[Version]:
        """Returns a model's versions with their states, highest first.

        Raises RequestError NOT_FOUND if there are none.
        """
        with self._changed:
            entries = [
                dataclasses.replace(entry)
                for entry in self._versions.get(name, {}).values()
                if number in (None, entry.number)
            ]
        if not entries:
            self._check_loading(name, number)
            raise RequestError(
                "NOT_FOUND",
                f"Could not find any versions of model {name}"
                if number is None
                else f"Could not find version {number} of model {name}",
            )
        return sorted(entries, key=lambda entry: -entry.number)

    def waiting(self) -> list[str]:
        """Returns the names of models without a loaded version, except those that are loaded on demand."""
        with self._changed:
            return [
                name
                for name, versions in self._versions.items()
                if not self.models[name].on_demand
                and not any(entry.state == "AVAILABLE" for entry in versions.values())
            ]

    def errors(self) -> list[str]:
        """Returns a line with the reason for each model without a loaded version."""
        return [f"model {name}: {self._why_waiting(name)}" for name in self.waiting()]

    def _why_waiting(self, name: str) -> str:
        model, versions = self.models[name], list(self._versions[name].values())
        if reasons := [entry.error for entry in versions if entry.error]:
            return reasons[-1]
        if loading := [entry for entry in versions if entry.state == "LOADING"]:
            seconds = time.monotonic() - loading[-1].since
            return f"version {loading[-1].number} is being loaded, for {seconds:.0f} s so far"
        if changing := [entry.number for entry in versions if entry.state == "START"]:
            return f"{model.base_path}: version {max(changing)} is being written"
        if self._is_starting:
            return "waits for the models before it to be loaded"
        if (numbers := model_versions(model.base_path)) and not model.chosen(numbers):
            return (
                f"{model.base_path}: expected one of the versions {sorted(model.specific)} of its policy, got "
                f"{sorted(numbers)}"
            )
        return why_no_versions(model.base_path)

    def close(self, timeout: float | None = None) -> None:
        """Ends all versions; waits up to `timeout` seconds for the requests of each."""
        with self._polling:
            for name, versions in self._versions.items():
                for version in versions.values():
                    if version.state == "AVAILABLE":
                        self._end(name, version, timeout)
