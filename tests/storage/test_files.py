"""Finding, reading and writing files; the kills are of real processes."""

import contextlib
import errno
import os
import pathlib
import resource
import shutil
import signal
import stat
import subprocess
import sys
import types

import pytest
import tensorflow as tf
from absl import app, flags

from official_bert import command_line
from official_bert.storage import files


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(name)


def found(folder, patterns, **options):
    patterns = ",".join(f"{folder}/{pattern}" for pattern in patterns.split(","))
    return [path.removeprefix(f"{folder}/") for path in files.find_files(patterns, **options)]


def test_folders_globs_and_lists_name_each_file_once(tmp_path):
    make(tmp_path, "a/x", "a/b/y", "z.txt")
    assert found(tmp_path, "z.txt,a,*.txt") == ["z.txt", "a/b/y", "a/x"]
    assert found(tmp_path, "a/**") == ["a/b/y", "a/x"] and found(tmp_path, "*,z.txt") == ["z.txt"]
    assert found(tmp_path, "z.txt,z.*", repeats=True) == ["z.txt", "z.txt"]  # 2018 reads such a file twice
    with pytest.raises(ValueError, match="no input file matches"):
        files.find_files(f"{tmp_path}/*.none")


def test_brackets_are_a_glob_first_and_then_a_name(tmp_path):
    make(tmp_path, "text[1].txt", "part[2]/x", "b1", "b[1]")
    assert found(tmp_path, "text[1].txt") == ["text[1].txt"] and found(tmp_path, "part[2]") == ["part[2]/x"]
    assert found(tmp_path, "b[1]") == ["b1"]


def test_shards_are_found_under_the_name_that_wrote_them(tmp_path):
    names = files.shard_names("t@3")
    assert names == ["t-00000-of-00003", "t-00001-of-00003", "t-00002-of-00003"]
    make(tmp_path, *names, "me@5")
    assert found(tmp_path, "t@3") == names and found(tmp_path, "me@5") == ["me@5"]
    assert files.shard_names("t@0") == ["t@0"] and files.shard_names("a@b") == ["a@b"]
    (tmp_path / names[1]).unlink()
    with pytest.raises(ValueError, match="t-00001-of-00003"):
        found(tmp_path, "t@3")


@pytest.mark.parametrize(
    ("patterns", "flag", "told"),
    [
        ("nowhere", "", "no input file matches 'nowhere'"),
        ("", "", "no input file given"),
        (",,", "", "no input file given"),
        ("none*", "--input_file", "--input_file: no file matches 'none*'"),
    ],
)
def test_what_is_not_found_is_named(patterns, flag, told):
    with pytest.raises(ValueError) as error:
        files.find_files(patterns, flag)
    assert told in str(error.value)


def test_a_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # as bash makes of <(zcat text.gz)
    make(tmp_path, "text")
    with pytest.raises(ValueError, match="--input_file=.*/pipe: expected a file, .*, got a pipe"):
        files.find_files(str(tmp_path), "--input_file")


def test_an_empty_folder_holds_no_file(tmp_path):
    with pytest.raises(ValueError, match="no input file matches"):
        files.find_files(str(tmp_path))


def test_lines_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "a"
    path.write_bytes("\ufeffone\r\ntwo\u2028 \ufeff\x0b\n\nlast".encode())
    assert list(files.read_lines(str(path))) == ["one", "two\u2028 \ufeff\x0b", "", "last"]
    assert files.read_text(str(path)) == "one\r\ntwo\u2028 \ufeff\x0b\n\nlast"
    path.write_bytes(b"")
    assert list(files.read_lines(str(path))) == [] and files.read_text(str(path)) == ""


def test_bad_bytes_and_missing_files_are_named(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"\xef\xbb\xbfgood\nb\xe9\n")
    with pytest.raises(ValueError, match=r"a:2: not valid UTF-8 at byte 9 of the file \(0xe9\)$"):
        files.read_text(str(path))
    with pytest.raises(ValueError, match="--on_bad_text=replace continues"):
        list(files.read_lines(str(path), on_bad_text="error"))
    assert list(files.read_lines(str(path), on_bad_text="replace")) == ["good", "b\ufffd"]
    with pytest.raises(ValueError, match="none: no such list of words"):
        files.read_text(str(tmp_path / "none"), "list of words")
    with pytest.raises(ValueError, match="expected a list of words, got a folder"):
        files.read_text(str(tmp_path), "list of words")
    path.write_text('{"a": 1')
    with pytest.raises(ValueError, match="a: not valid JSON: .*line 1"):
        files.read_json(str(path))


def run(code, *arguments, **options):
    """Starts a process that runs `code` after `from official_bert.storage.files import *`."""
    code = "import os, signal, sys\nfrom official_bert.storage import files\n" + code
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize("writer", ["written_whole", "written_folder"])
def test_a_kill_before_the_renaming_leaves_the_old(tmp_path, writer):
    target = tmp_path / "out"
    if writer == "written_folder":
        target.mkdir()
    else:
        target.write_text("old")
    body = "as f: f.write('new'); f.flush()" if writer == "written_whole" else "as f: open(f + '/x', 'w').write('new')"
    killed = run(f"with files.{writer}(sys.argv[1]) {body}; os.kill(os.getpid(), signal.SIGKILL)", target)
    assert killed.returncode == -signal.SIGKILL
    assert list(target.iterdir()) == [] if writer == "written_folder" else target.read_text() == "old"
    # what the killed one left is in nobody's way
    assert not run(f"with files.{writer}(sys.argv[1]) {body}", target).returncode
    assert (target / "x" if writer == "written_folder" else target).read_text() == "new"


@pytest.mark.parametrize("path", ["out", "new/folder/out"])
def test_an_error_leaves_nothing(tmp_path, path):
    for writer in (files.written_whole, files.written_folder):
        with pytest.raises(RuntimeError), writer(str(tmp_path / path)):
            raise RuntimeError
        assert not [name for _, _, names in os.walk(tmp_path) for name in names] and not (tmp_path / path).exists()


def test_files_written_together_appear_together_with_their_line_ends(tmp_path):
    paths = [str(tmp_path / "a"), str(tmp_path / "below" / "b")]
    with files.written_together(paths) as (a, b):
        a.write("1\r\n")
        b.write("ü\n")
        assert not any(map(os.path.exists, paths))
    assert [pathlib.Path(path).read_bytes() for path in paths] == [b"1\r\n", "ü\n".encode()]
    with pytest.raises(RuntimeError), files.written_together(paths) as (a, _):
        a.write("2")
        raise RuntimeError
    assert pathlib.Path(paths[0]).read_bytes() == b"1\r\n" and sorted(os.listdir(tmp_path)) == ["a", "below"]


def test_a_json_file_appears_whole_in_the_asked_form(tmp_path):
    path = tmp_path / "new/values.json"
    files.write_json(str(path), {"é": [1, None]})
    assert path.read_bytes() == b'{"\\u00e9": [1, null]}'
    files.write_json(str(path), {"é": [1]}, "\n", indent=1, ensure_ascii=False)
    assert path.read_text(encoding="utf-8") == '{\n "é": [\n  1\n ]\n}\n'
    with pytest.raises(TypeError):
        files.write_json(str(path), [1, {2}])
    assert path.read_text(encoding="utf-8").startswith("{") and os.listdir(tmp_path / "new") == ["values.json"]


def test_a_full_disk_is_told_with_the_files_names(tmp_path):
    limit = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); signal.signal(signal.SIGXFSZ, "
        "signal.SIG_IGN)\n"
    )
    done = run(
        limit + "with files.written_together(sys.argv[1:]) as (a, b): a.write('x' * 2000)",
        tmp_path / "a",
        tmp_path / "b",
    )
    assert f"ValueError: {tmp_path}/a, {tmp_path}/b: cannot be written: File too large" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_made_goes_again_if_nothing_fills_it(tmp_path):
    (tmp_path / "there").mkdir()
    for path in ("a/b/c/", "there", "there/x", "full"):
        with contextlib.suppress(RuntimeError), files.made_folder(str(tmp_path / path)):
            assert (tmp_path / path).is_dir()
            if path == "full":
                (tmp_path / "full/file").touch()
            raise RuntimeError
    with contextlib.suppress(RuntimeError), files.written_whole(str(tmp_path / "new/deep/file")):
        raise RuntimeError
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "full", "there"]


def test_errors_of_a_full_disk_name_the_folder_that_the_user_gave(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets/vocab.txt").write_bytes(bytes(2000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with (
            pytest.raises(OSError, match="File too large") as caught,
            files.written_folder(str(tmp_path / "model")) as folder,
        ):
            shutil.copytree(tmp_path / "assets", os.path.join(folder, "assets"))  # raises shutil.Error with a list
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert command_line.error_in_one_line(caught.value) == f"{tmp_path}/model: File too large"
    assert os.listdir(tmp_path) == ["assets"]


def test_other_errors_and_those_of_other_disks_stay_as_they_are(tmp_path):
    for error in (
        OSError(errno.ENOSPC, "No space left on device", "/elsewhere"),
        ValueError("x"),
        OSError(errno.ENOSPC, "No space"),
        PermissionError(errno.EACCES, "Permission denied", f"{tmp_path}/here/a"),
    ):
        with pytest.raises(type(error)) as caught, files.full_disk_names(str(tmp_path), f"{tmp_path}/here"):
            raise error
        assert caught.value is error


def test_what_a_killed_process_of_this_number_left_is_no_hindrance(tmp_path):
    (tmp_path / f"out.tmp.{os.getpid()}").mkdir()  # in a container each run may have the same number
    with files.written_folder(str(tmp_path / "out")) as folder:
        make(pathlib.Path(folder), "a")
    assert os.listdir(tmp_path / "out") == ["a"]


def test_a_folder_that_holds_something_is_kept(tmp_path):
    make(tmp_path, "full/x", "file")
    for name in ("full", "file"):
        with (
            pytest.raises(ValueError, match=f"{name}: expected a new or empty folder"),
            files.written_folder(str(tmp_path / name)),
        ):
            raise AssertionError
    with pytest.raises(ValueError, match="^--output=.*full: expected a new"):
        files.require_new_folder(str(tmp_path / "full"), "--output")
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


def test_versions_are_folders_named_by_numbers(tmp_path):
    make(tmp_path, "1/model", "10/model", "007/other", "2.tmp.5/model", "-3/model", "x/model", "12", "³/model")
    assert files.list_versions(str(tmp_path)) == {1: "1", 10: "10", 7: "007"}
    assert files.list_versions(str(tmp_path), ["model", "pb"]) == {1: "1", 10: "10"}
    assert files.list_versions(str(tmp_path / "none")) == {} == files.list_versions(str(tmp_path / "12"))


def test_a_private_folder_is_its_users_alone(tmp_path, monkeypatch):
    folder = tmp_path / "above" / "own"
    files.make_private_folder(f"{folder}/")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files.make_private_folder(str(folder))  # taken again
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(
        ValueError,
        match=r"link: expected a folder that nobody else can write in, got a link; remove it or give another",
    ):
        files.make_private_folder(f"{tmp_path}/link/")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file"):
        files.make_private_folder(str(tmp_path / "file"))
    for mode in (0o770, 0o707, 0o1777):
        folder.chmod(mode)
        with pytest.raises(
            ValueError,
            match=rf"own: .* got one that others can write in \(mode {mode:04o}; chmod go-w takes that away\)",
        ):
            files.make_private_folder(str(folder))
    folder.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ValueError, match=rf"own: .* got one of another user \(id {folder.stat().st_uid}\)"):
        files.make_private_folder(str(folder))


def test_a_full_disk_is_told_from_too_little_memory(tmp_path, monkeypatch, capsys):
    full = tf.errors.ResourceExhaustedError(
        None, None, f"{{{{node SaveV2}}}} {tmp_path}/variables/part-0; No space left on device [Op:SaveV2]"
    )
    memory = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor with shape [8,8]")
    assert files.disk_full_reason(full) == "No space left on device" and not files.disk_full_reason(memory)
    assert files.disk_full_reason(OSError(errno.EFBIG, "x")) == "File too large" and not files.disk_full_reason(
        OSError(errno.EACCES, "x")
    )

    def run(error):
        def main(_):
            raise error

        monkeypatch.setattr(app, "run", lambda checked, **_: checked([]))
        with pytest.raises(SystemExit) as stopped:
            command_line.run_main(main)
        return str(stopped.value)

    assert run(full).startswith(
        f"error: No space left on device: {tmp_path}/variables/part-0"
    ) and "batches" not in run(full)
    assert run(memory).startswith("error: out of memory; smaller batches")
    # Errors without a file's name, also those of other libraries: the paths of the command line that lie on a full disk
    # are told.
    values = flags.FlagValues()
    for name in ("output_dir", "input_file", "vocab_file"):
        flags.DEFINE_string(name, None, "", flag_values=values)
    values(["command", f"--output_dir={tmp_path}/new/run", "--input_file=elsewhere.txt"])
    monkeypatch.setattr(flags, "FLAGS", values)
    monkeypatch.setattr(
        files.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=(str(tmp_path) != path) << 30)
    )
    told = f"No space left on device (on a full disk: --output_dir={tmp_path}/new/run)"
    assert run(OSError(errno.ENOSPC, "No space left on device")) == f"error: [Errno 28] {told}"
    # as of every file
    assert run(OSError(errno.ENOSPC, "No space left on device", "a")) == "error: a: No space left on device"
    other = type("SafetensorError", (Exception,), {})("I/O error: No space left on device")
    assert run(other) == f"error: No space left on device: I/O error: {told}"
