"""The work folder: finished pieces are found again, by the same run only, and by one process at a time."""

import json
import os
import resource
import stat
import zlib

import pytest

from official_bert.long_work.work_folder import WorkFolder, work_path

MADE_OF = {"--random_seed": 1, "text": ["a", "b"]}


def is_whole(path, facts):
    with open(path, encoding="utf-8") as file:
        return len(file.read()) == facts["characters"]


def write(work, name, text):
    with open(work.path_of(name), "w", encoding="utf-8") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "out.work")


@pytest.fixture
def stopped(path):
    """A folder that a stopped run left, with one finished piece and one begun."""
    with pytest.raises(SystemExit), WorkFolder(path, MADE_OF) as work:
        write(work, "done", "whole")
        work.finish("done", {"characters": 5})
        write(work, "begun", "who")
        raise SystemExit("stopped")
    return path


def test_the_same_run_finds_what_is_finished_and_only_that(stopped, tmp_path, capsys):
    assert "--discard removes it" not in capsys.readouterr().out
    with WorkFolder(stopped, MADE_OF) as work:
        assert work.finished("done", is_whole) == {"characters": 5}
        assert work.finished("begun", is_whole) is None and work.finished("other", is_whole) is None
        write(work, "done", "hurt")
        assert work.finished("done", is_whole) is None
    assert not list(tmp_path.iterdir())  # the run ended well


def test_a_published_piece_counts_as_finished(stopped, tmp_path):
    target = str(tmp_path / "out")
    with pytest.raises(SystemExit), WorkFolder(stopped, MADE_OF) as work:
        work.publish("done", target)
        raise SystemExit("stopped in the middle of publishing")
    with WorkFolder(stopped, MADE_OF) as work:
        assert work.finished("done", is_whole, target) == {"characters": 5}
        assert work.finished("done", is_whole) is None
        work.publish("done", target)
    assert (tmp_path / "out").read_text() == "whole" and len(list(tmp_path.iterdir())) == 1


def test_another_run_is_refused_and_may_discard(stopped, tmp_path):
    with (
        pytest.raises(ValueError, match="the finished work of a stopped run with another --random_seed; .*--discard"),
        WorkFolder(stopped, MADE_OF | {"--random_seed": 2}),
    ):
        pass
    with WorkFolder(stopped, MADE_OF) as work:  # nothing was lost
        assert work.finished("done", is_whole)
        raise_later = WorkFolder(stopped, MADE_OF | {"--random_seed": 2}, discard=True)
        with pytest.raises(ValueError, match="another run is using it"), raise_later:
            pass
        assert work.finished("done", is_whole)
    with WorkFolder(stopped, MADE_OF | {"--random_seed": 2}, discard=True) as work:
        assert work.finished("done", is_whole) is None


@pytest.mark.parametrize("error", [ValueError("a user's mistake"), KeyError("a bug")])
def test_a_run_that_fails_for_good_leaves_nothing(path, tmp_path, error):
    with pytest.raises(type(error)), WorkFolder(path, MADE_OF) as work:
        write(work, "done", "whole")
        work.finish("done", {"characters": 5})
        raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "error, kept", [(SystemExit, True), (KeyboardInterrupt, True), (OSError, True), (ValueError, False)]
)
@pytest.mark.parametrize("has_piece", [True, False])
def test_a_stopped_run_keeps_the_folder_if_something_is_finished(path, tmp_path, error, kept, has_piece):
    with pytest.raises(error), WorkFolder(path, MADE_OF) as work:
        if has_piece:
            write(work, "done", "whole")
            work.finish("done", {"characters": 5})
        raise error("stopped")
    assert bool(list(tmp_path.iterdir())) == (kept and has_piece)


def test_a_folder_without_a_description_or_with_damaged_notes_is_begun_anew(stopped):
    with open(f"{stopped}/done.json", "w", encoding="utf-8") as file:
        file.write("{")
    with pytest.raises(SystemExit), WorkFolder(stopped, MADE_OF) as work:
        assert work.finished("done", is_whole) is None
        raise SystemExit
    with open(f"{stopped}/made_of.json", "w", encoding="utf-8") as file:
        file.write(json.dumps(MADE_OF)[:-4])
    with WorkFolder(stopped, MADE_OF) as work:
        assert work.finished("done", is_whole) is None


def test_a_folder_that_another_user_may_have_filled_is_refused_and_left_alone(path, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "kept").write_text("")
    os.symlink(tmp_path / "theirs", path)
    with (
        pytest.raises(ValueError, match=r"out.work: .* nobody else can write in, got a link"),
        WorkFolder(path, MADE_OF, discard=True),
    ):
        pass
    os.unlink(path)
    os.rename(tmp_path / "theirs", path)
    os.chmod(path, 0o777)
    with pytest.raises(ValueError, match="got one that others can write in"), WorkFolder(path, MADE_OF, discard=True):
        pass
    assert os.listdir(path) == ["kept"]
    os.chmod(path, 0o700)
    with WorkFolder(path, MADE_OF):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_work_for_outputs_elsewhere_is_in_a_folder_with_the_users_number(monkeypatch):
    one = work_path("memory://bucket/out")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert f"official_bert_{12345}-out-" in work_path("memory://bucket/out") != one and work_path("out") == "out.work"


def test_a_new_folder_is_private(path):
    with WorkFolder(path, MADE_OF):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700


def test_results_of_a_stopped_run_are_found_again_unless_they_are_damaged(path, tmp_path):
    results = [{"text": "a" * 1000}, ["b", 2], "c"]
    with pytest.raises(SystemExit), WorkFolder(path, MADE_OF) as work:
        for number, value in enumerate(results):
            work.keep_result(number, value)
        raise SystemExit("stopped")
    program = f"cos\nmkdir\n(X{chr(len(str(tmp_path)) + 4)}\0\0\0{tmp_path}/runtR.".encode()  # a pickle that would run
    with WorkFolder(path, MADE_OF) as work:
        assert [work.result(number) for number in range(4)] == [*results, None]
        whole = (tmp_path / "out.work" / "0.result").read_bytes()
        cut_off = [whole[:size] for size in range(len(whole))]
        packed = [zlib.compress(data, 9) for data in (program, b"\0" * (1 << 28), b"[1", b"[" * 100_000)]
        for data in (*cut_off, whole[:-1] + bytes([whole[-1] ^ 1]), *packed):
            (tmp_path / "out.work" / "0.result").write_bytes(data)
            assert work.result(0) is None and work.result(1) == results[1]
        assert not (tmp_path / "run").exists()

        def refuse(value):
            raise ValueError

        assert work.result(1, refuse) is None


def test_a_result_for_which_there_is_no_room_leaves_nothing(path):
    with WorkFolder(path, MADE_OF) as work:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                work.keep_result(0, "".join(map(chr, range(256))))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert work.result(0) is None and not [name for name in os.listdir(path) if "result" in name]


def test_the_unfinished_output_of_a_killed_process_is_removed(tmp_path):
    for name in ("out.tmp.12.0123abcd", "out.tmp.txt", "other.tmp.12.0123abcd"):
        (tmp_path / name).write_text("")
    with WorkFolder(str(tmp_path / "out.work"), {}):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.tmp.12.0123abcd", "out.tmp.txt"]
