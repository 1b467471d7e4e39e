"""Copies files of other stores to this machine, for libraries that read and write only here.

Copies are deleted when the process ends. They keep the folder tree of their store, so files that lie side by side there
lie side by side here.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence

from official_bert.storage.files import folder_of, normal, remove, written_beside
from official_bert.storage.stores import Location, Store, scheme_of
from official_bert.storage.temporaries import stand_for, temporary_folder

# ends of names that readers look for: whatever they name is there by then
SEEN_LAST = ("saved_model.pb", ".index", "checkpoint")


def upload(store: Store, names: Sequence[str], folder: str, target: str) -> None:
    """Copies files of a folder on this machine to a folder of a store; those that readers look for (`SEEN_LAST`) at the
    end.
    """

    def rank(name: str) -> int:
        return next((place for place, end in enumerate(SEEN_LAST, 1) if name.endswith(end)), 0)

    for name in sorted(names, key=lambda name: (rank(name), name)):
        store.make_folder(folder_of(os.path.join(target, name)))
        store.upload(os.path.join(folder, name), os.path.join(target, name))


class RemoteLocation(Location):
    """A path in another store. Its copy on this machine is made when it is fetched."""

    def __init__(self, path: str, store: Store):
        super().__init__(path)
        self.store, self.scheme = store, scheme_of(path)
        self.folder = self._copy_of(path)
        self._copied: dict[str, tuple[int, int]] = {}
        stand_for(self._copy_of(""), f"{self.scheme}://")

    def _copy_of(self, path: str) -> str:
        """Returns the path of the copy of a path in this store."""
        inside = normal(path)[len(self.scheme) + 3 :].lstrip("/") if path else ""
        return os.path.join(temporary_folder(), self.scheme, inside)

    def fetch(self) -> str:
        kind = self.store.kind(self.path)
        if kind == "file":
            self._refresh(self.path)
        elif kind == "folder":
            os.makedirs(self.folder, exist_ok=True)
            for inside in self.store.below(self.path):
                self._refresh(inside)
        else:
            above = folder_of(self.path)
            for name in self.store.names(above):
                if name.startswith(os.path.basename(self.path)):
                    RemoteLocation(os.path.join(above, name), self.store).fetch()
        self._copied = self._state()
        return self.folder

    def _refresh(self, path: str) -> None:
        """Copies a file here unless the copy has the same size and time (or the same content, if the store records no
        times).
        """
        target, size, when = self._copy_of(path), self.store.size(path), self.store.modified(path)
        if (
            os.path.exists(target)
            and os.path.getsize(target) == size
            and (
                os.stat(target).st_mtime_ns == when
                if when
                else self.store.open(path).read() == Store().open(target).read()
            )
        ):
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with written_beside(target) as temporary, self.store.open(path) as source, open(temporary, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        if when:
            os.utime(target, ns=(when, when))

    def forget(self) -> None:
        remove(self.folder)

    def beside(self, ending: str) -> str:
        digest = hashlib.sha256(self.path.encode()).hexdigest()[:12]
        return os.path.join(
            tempfile.gettempdir(), f"official_bert_{os.geteuid()}-{os.path.basename(self.path)}-{digest}{ending}"
        )

    def _state(self) -> dict[str, tuple[int, int]]:
        """Returns the size and the time of each file of the copy, by its name."""
        paths = Store().below(self.folder)
        return {name: self._state_of(name) for name in (os.path.relpath(path, self.folder) for path in paths)}

    def _state_of(self, name: str) -> tuple[int, int]:
        stat = os.stat(os.path.join(self.folder, name))
        return stat.st_size, stat.st_mtime_ns

    def pull(self) -> None:
        before = self._copied
        self.fetch()
        names = {os.path.relpath(self._copy_of(path), self.folder) for path in self.store.below(self.path)}
        for name in set(before) - names:
            remove(os.path.join(self.folder, name))
        self._copied = {name: state for name, state in self._copied.items() if name in names}

    def push(self) -> None:
        now = self._state()
        changed = [name for name, state in now.items() if self._copied.get(name) != state and not name.startswith(".")]
        upload(self.store, changed, self.folder, self.path)
        for name in changed:  # with the same time here, nothing is brought back that was just written
            if when := self.store.modified(os.path.join(self.path, name)):
                os.utime(os.path.join(self.folder, name), ns=(when, when))
        for name in set(self._copied) - set(now):
            self.store.remove(os.path.join(self.path, name))
        # A log that has grown since is another one than the copied.
        self._copied = {
            name: (size, self._state_of(name)[1]) if name in changed else (size, time)
            for name, (size, time) in now.items()
        }
