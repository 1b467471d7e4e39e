"""Files that lie elsewhere than on this machine: on TensorFlow's `ram://` and on fsspec's `memory://`."""

from official_bert.command_line import require_here

import gzip
import os
import subprocess
import sys

import fsspec
import pytest
from commands import ROOT, run_here

from official_bert.data.raw_text.containers import BadText, read_text_lines
from official_bert.storage import files, remote_stores, stores, temporaries
from official_bert.storage.stores import locate


@pytest.fixture(params=["memory", "ram"])
def root(request, tmp_path, monkeypatch):
    """An empty folder of the store; no local folder of its scheme's name may appear."""
    monkeypatch.chdir(tmp_path)
    yield f"{request.param}://{tmp_path.name}-{os.getpid()}"
    assert os.listdir(tmp_path) == []


def write(path, text):
    with files.written_whole(path) as file:
        file.write(text)


def test_files_are_written_whole_read_listed_and_removed(root):
    assert not files.exists(root) and files.list_names(root) == [] and files.matching(f"{root}/*") == []
    write(f"{root}/a/lines.txt", "\ufeffone\r\ntwo\n")
    assert list(files.read_lines(f"{root}/a/lines.txt")) == ["one", "two"]
    assert files.is_folder(f"{root}/a") and files.is_file(f"{root}/a/lines.txt") and not files.is_file(f"{root}/a")
    assert (
        files.size_of(f"{root}/a/lines.txt") == 12
        and files.list_names(root) == ["a"]
        and files.list_names(f"{root}/a") == ["lines.txt"]
    )
    with pytest.raises(KeyError), files.written_together([f"{root}/b", f"{root}/c"]) as (one, _):
        one.write("half")
        raise KeyError
    assert files.list_names(root) == ["a"]
    files.remove(root)
    assert not files.exists(root)
    files.remove(root)


@pytest.mark.parametrize("name", ["a/none", "a"])
def test_what_cannot_be_read_is_named(root, name):
    write(f"{root}/a/b", "")
    with pytest.raises(ValueError, match=f"{root}/{name}: (no such file|expected a file, got a folder)"):
        list(files.read_lines(f"{root}/{name}"))
    with pytest.raises(ValueError, match="no input file matches"):
        files.find_files(f"{root}/none*")


def test_globs_folders_and_shards_name_the_same_files_as_on_this_machine(root, tmp_path_factory):
    here = tmp_path_factory.mktemp("here")
    for name in ("x", "a/y", "a/b/z", "a/.hidden", "t-00000-of-00002", "t-00001-of-00002", "b[1]"):
        write(f"{root}/{name}", name)
        write(f"{here}/{name}", name)
    for pattern in ("*", "a", "a/*", "a/**", "**/z", "t@2", "x,a", "b[1]", "t-*-of-*", "[xy]", "?"):
        found = [files.find_files(",".join(f"{place}/{part}" for part in pattern.split(","))) for place in (root, here)]
        assert [path.removeprefix(f"{root}/") for path in found[0]] == [
            path.removeprefix(f"{here}/") for path in found[1]
        ], pattern


def test_files_of_a_store_whose_paths_begin_at_a_root_are_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.txt").write_text("x")
    for pattern in ("a", "a/", "*/*.txt", "**", "a/x.txt"):
        assert [files.normal(path) for path in files.find_files(f"file://{tmp_path}/{pattern}")] == [
            f"file://{tmp_path}/a/x.txt"
        ], pattern
    assert files.files_below(f"file://{tmp_path}") == [f"file://{tmp_path}/a/x.txt"]
    work = locate(f"file://{tmp_path}/a")
    work.fetch()
    assert os.path.relpath(work.folder, temporaries.temporary_folder()) == f"file{tmp_path}/a" and os.listdir(
        work.folder
    ) == ["x.txt"]
    write(f"{work.folder}/y.txt", "y")
    assert os.listdir(tmp_path / "a") == ["x.txt"]
    work.push()
    assert (tmp_path / "a/y.txt").read_text() == "y"


def test_a_store_with_hosts_keeps_them_in_the_names_of_files(monkeypatch):
    fsspec = pytest.importorskip("fsspec")

    class Hosts(fsspec.get_filesystem_class("memory")):  # as hdfs:// and sftp://: the host is no part of a path there
        protocol = "sftp"
        cachable = False

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.partition("://")[2].partition("/")[2].strip("/") if "://" in path else path

        def find(self, path, **options):
            return ["/data/a/x.txt"]

    monkeypatch.setattr(fsspec.core, "url_to_fs", lambda path: (Hosts(), path))
    assert stores.store_of("sftp://host:22/data").below("sftp://host:22/data") == ["sftp://host:22/data/a/x.txt"]


def test_bytes_are_read_from_any_place_of_a_file(root, tmp_path_factory):
    local = tmp_path_factory.mktemp("here") / "data.gz"
    local.write_bytes(gzip.compress(b"0123456789" * 1000))
    stores.store_of(f"{root}/data.gz").upload(str(local), f"{root}/data.gz")
    with files.open_bytes(f"{root}/data.gz") as file, gzip.open(file) as plain:
        assert plain.read(5) == b"01234" and plain.seek(9_995) == 9_995 and plain.read() == b"56789"
    with files.open_bytes(f"{root}/data.gz") as file:
        data = file.read()
        assert (
            file.seek(3) == 3 and file.read(4) == data[3:7] and file.seek(-2, os.SEEK_END) and file.read() == data[-2:]
        )


def test_a_copy_here_follows_its_file_and_messages_name_the_file(root):
    write(f"{root}/run/config.yaml", "one")
    write(f"{root}/run/best/ckpt-1.index", "index")
    write(f"{root}/run/best/ckpt-1.data-0", "data")
    prefix = locate(f"{root}/run/best/ckpt-1").fetch()
    assert sorted(os.listdir(os.path.dirname(prefix))) == ["ckpt-1.data-0", "ckpt-1.index"]
    copy = locate(f"{root}/run").fetch()
    assert os.path.dirname(os.path.dirname(prefix)) == copy and files.read_text(f"{copy}/config.yaml") == "one"
    assert temporaries.original_paths(f"{copy}/config.yaml: no such file") == f"{root}/run/config.yaml: no such file"
    write(f"{root}/run/config.yaml", "another")
    assert files.read_text(f"{locate(root + '/run').fetch()}/config.yaml") == "another"
    assert locate("here.txt").fetch() == "here.txt"
    assert temporaries.original_paths("here.txt: wrong") == "here.txt: wrong"


def test_made_text_goes_where_it_should(root):
    done = run_here("tools/make_ablation_text.py", f"--output_dir={root}/made")
    assert done.returncode == 0 and files.list_names(f"{root}/made") == ["glue", "held_out.txt", "train.txt"]


def test_a_folder_appears_with_the_file_that_readers_look_for_at_the_end(root, monkeypatch):
    order = []
    store = type(stores.store_of(root))
    before = store.upload

    def upload(self, local, path):
        order.append(path.removeprefix(f"{root}/m/"))
        before(self, local, path)

    monkeypatch.setattr(store, "upload", upload)
    with files.written_folder(f"{root}/m") as folder:
        for name in (
            "saved_model.pb",
            "variables/variables.index",
            "variables/variables.data-0",
            "assets/a",
            "checkpoint",
        ):
            write(f"{folder}/{name}", name)
    assert order == [
        "assets/a",
        "variables/variables.data-0",
        "saved_model.pb",
        "variables/variables.index",
        "checkpoint",
    ]
    with pytest.raises(ValueError, match="expected a new or empty folder"):
        files.require_new_folder(f"{root}/m")


def test_a_working_folder_is_copied_back_with_what_changed(root):
    write(f"{root}/run/ckpt-1.index", "1")
    work = locate(f"{root}/run")
    work.fetch()
    assert os.listdir(work.folder) == ["ckpt-1.index"]
    write(f"{work.folder}/ckpt-2.index", "2")
    files.remove(f"{work.folder}/ckpt-1.index")
    work.push()
    assert files.list_names(f"{root}/run") == ["ckpt-2.index"]
    write(f"{root}/run/other", "")
    work.pull()
    assert files.list_names(work.folder) == ["ckpt-2.index", "other"]


class Ranges(fsspec.AbstractFileSystem):
    """Gives each file in ranges of bytes, as the stores of clouds do."""

    protocol = "ranges"
    content = "first line\nsecond \u00e9\n".encode()

    def info(self, path, **_):
        return {"name": path, "size": len(self.content), "type": "file"}

    def _open(self, path, mode="rb", **options):
        file = fsspec.spec.AbstractBufferedFile(self, path, mode, size=len(self.content))
        file._fetch_range = lambda start, end: self.content[start:end]
        file.cache.fetcher = file._fetch_range
        return file


def test_lines_of_a_file_that_comes_in_ranges_of_bytes_are_read_within_a_bound():
    fsspec.register_implementation("ranges", Ranges)
    with files.open_bytes("ranges://bucket/a.txt") as file:
        assert file.readline(5) == b"first" and file.readline() == b" line\n"
    assert list(read_text_lines("ranges://bucket/a.txt", BadText())) == ["first line", "second \u00e9"]


def test_folders_whose_names_begin_alike_are_two(root):
    for name in ("assets/a", "assets.extra/b"):
        write(f"{root}/{name}", name)
    assert sorted(files.files_below(root)) == [f"{root}/assets.extra/b", f"{root}/assets/a"]
    assert files.list_names(f"{root}/assets") == ["a"]
    assert sorted(os.listdir(locate(root).fetch())) == ["assets", "assets.extra"]


def test_what_a_store_cannot_do_is_told_in_one_line_with_the_path(monkeypatch):
    class Unreachable:
        def invalidate_cache(self):
            """Does nothing."""

        def __getattr__(self, name):
            raise RuntimeError("no answer\nfrom the server")

    store = remote_stores.FsspecStore("memory://x", "memory")
    monkeypatch.setattr(store, "_files", Unreachable())
    for method in (store.kind, store.names, store.below, store.size, store.modified, store.open, store.remove):
        with pytest.raises(OSError, match="memory://x/y: no answer from the server"):
            method("memory://x/y")


def test_paths_of_stores_are_never_taken_for_local_ones():
    assert files.folder_of("gs://bucket") == "gs://" and files.folder_of("gs://bucket/a") == "gs://bucket"
    assert files.normal("gs://bucket/a/../b/") == "gs://bucket/b" == files.absolute("gs://bucket/./b")
    assert files.folder_of("a/b") == "a" and files.folder_of("b") == "" and not files.is_remote("a:b/c")
    with pytest.raises(
        ValueError, match="nowhere://x: expected a path on this machine, gs://, or a scheme that fsspec knows"
    ):
        files.exists("nowhere://x")


def test_the_data_tools_import_tensorflow_only_when_a_path_asks_for_it(golden, tmp_path):
    tool = (
        "import runpy, sys; sys.argv[0] = 'tool'; runpy.run_path('tools/create_pretraining_data.py', "
        "run_name='__main__')"
    )
    program = (
        f"import atexit, sys; atexit.register(lambda: print('tensorflow' in sys.modules, 'fsspec' in "
        f"sys.modules)); {tool}"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            f"--input_file={golden}/text_a.txt",
            f"--output_file={tmp_path}/out",
            f"--vocab_file={golden}/vocab_uncased.txt",
            "--dupe_factor=1",
        ],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines()[-1] == "False False"


def test_a_path_elsewhere_is_refused_where_only_this_machine_will_do():
    require_here("work", "work_dir", "its files are locked")
    with pytest.raises(
        ValueError, match="--work_dir=gs://bucket/work: expected a path on this machine: its files are locked"
    ):
        require_here("gs://bucket/work", "work_dir", "its files are locked")
