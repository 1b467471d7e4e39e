"""Versions in folders: which are served, when they change, and that nobody loses an answer by it."""

import os
import threading
import time

import pytest

from official_bert.server.metrics import Metrics
from official_bert.server.models import servable
from official_bert.server.models.model_manager import ModelManager
from official_bert.server.server_config import ServedModelConfig
from official_bert.server.statuses import RequestError


class Loaded:
    """Stands for a servable."""

    def __init__(self, name, version, folder):
        if os.path.exists(os.path.join(folder, "broken")):
            raise ValueError(f"{folder}: cannot be read")
        self.version, self.closed = version, False

    def close(self):
        self.closed = True


@pytest.fixture
def base(tmp_path):
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def add(base, version, age=100.0, broken=False):
    """A version's folder, last written `age` seconds ago."""
    folder = base / str(version)
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"x")
    if broken:
        (folder / "broken").write_bytes(b"")
    for path in folder.iterdir():
        os.utime(path, (time.time() - age,) * 2)
    return folder


def manager_of(base, settle_seconds=0.0, **policy):
    return ModelManager([ServedModelConfig(name="m", base_path=str(base), **policy)], Loaded, Metrics(), settle_seconds)


def states(manager):
    return {version.number: version.state for version in manager.statuses("m")}


def served(manager, version=None, label=None):
    with manager.using("m", version, label) as servable:
        return servable.version


def test_the_highest_number_is_served_and_not_the_last_name(base):
    for version in (2, 10, 9):
        add(base, version)
    (base / "latest").mkdir()
    (base / ".writing-11").mkdir()
    (base / "12.tmp").mkdir()
    (base / "13").write_text("a file")
    manager = manager_of(base)
    manager.poll()
    assert served(manager) == 10 and states(manager) == {10: "AVAILABLE"}


def test_a_new_version_takes_over_and_the_old_one_ends(base):
    add(base, 1)
    manager = manager_of(base)
    manager.poll()
    with manager.using("m") as old:
        add(base, 2)
        polling = threading.Thread(target=manager.poll)
        polling.start()
        deadline = time.time() + 5
        while states(manager).get(2) != "AVAILABLE" or states(manager)[1] != "UNLOADING":
            assert time.time() < deadline
            time.sleep(0.01)
        assert served(manager) == 2 and not old.closed  # it still has a request
    polling.join(5)
    assert old.closed and states(manager) == {2: "AVAILABLE", 1: "END"}
    with pytest.raises(RequestError, match=r"Specific\(m, 1\)"), manager.using("m", 1):
        pass


def test_a_version_that_is_being_written_is_left_alone(base):
    add(base, 1)
    manager = manager_of(base, settle_seconds=30.0)
    # Its inode is new: it counts as finished at the second look only.
    manager.poll()
    assert states(manager) == {1: "START"}
    manager.poll()
    assert states(manager) == {1: "AVAILABLE"}
    folder = add(base, 2)
    for size in (1, 2, 3):
        (folder / "variables").write_bytes(b"x" * size)
        manager.poll()
        assert states(manager) == {2: "START", 1: "AVAILABLE"}
    manager.poll()
    assert states(manager) == {2: "AVAILABLE", 1: "END"}


def test_a_folder_without_a_model_is_no_version_yet(base):
    add(base, 1)
    (base / "2").mkdir()
    manager = manager_of(base)
    manager.poll()
    manager.poll()
    assert served(manager) == 1 and states(manager) == {1: "AVAILABLE"}


def test_a_version_that_does_not_load_leaves_the_old_one_in_service_until_it_is_mended(base):
    add(base, 1)
    manager = manager_of(base)
    manager.poll()
    folder = add(base, 2, broken=True)
    manager.poll()
    manager.poll()
    assert served(manager) == 1
    failed = manager.statuses("m", 2)[0]
    assert failed.state == "END" and failed.error == f"{folder}: cannot be read"
    (folder / "broken").unlink()
    manager.poll()
    assert served(manager) == 2


def test_a_broken_newest_version_does_not_keep_a_server_from_starting(base):
    for version in (1, 2, 3):
        add(base, version, broken=version > 1)
    manager = manager_of(base)
    manager.poll()
    assert served(manager) == 1 and states(manager) == {3: "END", 2: "END", 1: "AVAILABLE"}


def test_deleting_the_newest_version_goes_back_and_deleting_all_changes_nothing(base):
    for version in (1, 2):
        add(base, version)
    manager = manager_of(base)
    manager.poll()
    assert served(manager) == 2
    os.rename(base / "2", base / "two")
    manager.poll()
    assert served(manager) == 1 and states(manager)[2] == "END"
    os.rename(base / "1", base / "one")
    manager.poll()
    assert served(manager) == 1
    os.rename(base / "two", base / "2")
    manager.poll()
    assert served(manager) == 2


def test_policies_choose_versions(base):
    for version in (1, 2, 3):
        add(base, version)
    for policy, wanted in (
        ({"latest": 2}, {2, 3}),
        ({"policy": "all"}, {1, 2, 3}),
        ({"policy": "specific", "specific": (1, 3, 8)}, {1, 3}),
    ):
        manager = manager_of(base, **policy)
        manager.poll()
        assert {number for number, state in states(manager).items() if state == "AVAILABLE"} == wanted
        manager.close()


def test_labels_name_versions(base):
    for version in (1, 2):
        add(base, version)
    manager = manager_of(base, policy="all", labels={"stable": 1})
    manager.poll()
    assert served(manager, label="stable") == 1
    with pytest.raises(RequestError, match="Unrecognized servable version label: canary"):
        served(manager, label="canary")


@pytest.mark.slow
def test_only_few_ended_versions_are_remembered(base):
    manager = manager_of(base)
    for version in range(1, 16):
        folder = add(base, version)
        manager.poll()
        os.rename(folder, base / f"old-{version}")
    assert served(manager) == 15 and len(states(manager)) < 12


def test_what_is_wrong_with_a_folder_is_said_with_a_hint(base, tmp_path):
    (tmp_path / "empty").mkdir()
    for path, words in (
        (tmp_path / "none", "no such folder"),
        (tmp_path / "empty", "expected folders named by numbers"),
        (add(base, 1), "it is itself a version: give the folder above it"),
        (tmp_path, f"did you mean {base}?"),
    ):
        manager = manager_of(path)
        manager.poll()
        assert words in manager.errors()[0] and manager.waiting()


def test_versions_that_are_not_there_or_not_whole_are_named(base):
    add(base, 1)
    manager = manager_of(base, policy="specific", specific=(3, 2))
    manager.poll()
    assert manager.errors() == [f"model m: {base}: expected one of the versions [2, 3] of its policy, got [1]"]
    manager = manager_of(base, settle_seconds=30.0)
    manager.poll()
    assert manager.errors() == [f"model m: {base}: version 1 is being written"]


def test_closing_ends_everything(base):
    add(base, 1)
    manager = manager_of(base)
    manager.poll()
    with manager.using("m") as servable:
        pass
    manager.close()
    assert servable.closed and manager.waiting()
    with pytest.raises(RequestError, match="Servable not found"):
        served(manager)


def test_the_first_line_of_a_message_is_the_one_that_says_what_went_wrong():
    message = (
        "Graph execution error:\n\nDetected at node StatefulPartitionedCall defined at (most recent call last):\n"
        "Node: 'StatefulPartitionedCall'\nOp type not registered 'FastWordpieceTokenizeWithOffsets' in binary running "
        "on host.\n"
    )
    assert (
        servable._first_line(message)
        == "Op type not registered 'FastWordpieceTokenizeWithOffsets' in binary running on host."
    )
