"""A server on this machine that speaks as much of the Hugging Face hub's interface as fetching a repository takes."""

import contextlib
import hashlib
import http.server
import json
import pathlib
import threading
import urllib.parse
from collections.abc import Iterator

SHA = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves the repositories in a folder: OWNER/NAME/FILES. `seen` has each request's method, path and token."""

    def __init__(self, folder: pathlib.Path):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.seen, self.cut_after, self.private = folder, [], {}, set()
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_) -> None:
        """Prints nothing."""

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, with_body: bool) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path).strip("/")
        self.server.seen.append((self.command, path, self.headers.get("Authorization", "")))
        parts = path.split("/")
        owner, name = parts[2:4] if parts[:2] == ["api", "models"] else parts[:2]
        repository = self.server.folder / owner / name
        if f"{owner}/{name}" in self.server.private and not self.headers.get("Authorization"):
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        if not repository.is_dir():
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, with_body)
        rest = parts[4:] if parts[:2] == ["api", "models"] else parts[2:]
        if rest[:1] in (["revision"], ["tree"], ["resolve"]) and rest[1] not in ("main", SHA):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
        if parts[:2] == ["api", "models"]:
            return self._send(
                200,
                json.dumps(self._listed(repository, rest)).encode(),
                {"Content-Type": "application/json"},
                with_body,
            )
        return self._send_file(repository.joinpath(*rest[2:]), with_body)

    def _listed(self, repository: pathlib.Path, rest: list[str]):
        files = sorted(path for path in repository.rglob("*") if path.is_file())
        names = [str(path.relative_to(repository)) for path in files]
        if rest[:1] == ["tree"]:
            return [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": "0" * 40}
                for name, path in zip(names, files)
            ]
        return {
            "id": "/".join(repository.parts[-2:]),
            "sha": SHA,
            "private": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": name} for name in names],
        }

    def _send_file(self, path: pathlib.Path, with_body: bool) -> None:
        if not path.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": SHA}, with_body)
        content = path.read_bytes()
        headers = {"X-Repo-Commit": SHA, "ETag": f'"{hashlib.sha256(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self._send(
            206 if start else 200, content[start:], headers, with_body, self.server.cut_after.get(path.name)
        )

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], with_body: bool, cut_after: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body[:cut_after])
            if cut_after is not None and cut_after < len(body):
                self.wfile.flush()
                self.connection.close()


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[Hub]:
    """Serves a folder of repositories while the context lasts."""
    with Hub(folder) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            hub.shutdown()
