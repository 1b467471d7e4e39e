import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from commands import imported_tool, limited, run_here

from official_bert.data.raw_text import containers
from official_bert.long_work import provenance
from official_bert.long_work.work_folder import WorkFolder


def prepare(root, *arguments):
    return subprocess.run(
        [sys.executable, str(root / "tools/prepare_corpus.py"), *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def tool():
    with imported_tool("prepare_corpus") as module:
        yield module


def corpus_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    words = [
        "the",
        "small",
        "old",
        "river",
        "house",
        "walks",
        "sees",
        "under",
        "over",
        "quickly",
        "and",
        "then",
        "stone",
    ]
    for _ in range(count):
        sentences = [" ".join(rng.choice(words, rng.integers(5, 12))).capitalize() + "." for _ in range(6)]
        yield json.dumps({"text": " ".join(sentences)})


@pytest.mark.slow
def test_any_number_of_workers_writes_the_same_files_and_counts_them(root, tmp_path):
    source = tmp_path / "in.jsonl"
    rows = list(corpus_rows(3000))
    source.write_text("\n".join(rows + rows[:10]) + '\n{"text": "Too short."}\n')
    made = {}
    for workers in (1, 3):
        report = tmp_path / f"report{workers}.json"
        outputs = [tmp_path / f"{workers}-{part}.txt" for part in range(2)]
        done = prepare(
            root,
            f"--input_file={source}",
            f"--output_file={outputs[0]},{outputs[1]}",
            f"--num_workers={workers}",
            f"--report_file={report}",
        )
        assert done.returncode == 0, done.stderr
        made[workers] = [path.read_bytes() for path in outputs] + [report.read_bytes()]
    assert made[1] == made[3]
    report = json.loads(made[1][2])
    texts = [text.decode().strip().split("\n\n") for text in made[1][:2]]
    assert report["documents"] == 3010 == sum(map(len, texts)) and report["documents_dropped"] == 1
    lines = [line for text in texts for document in text for line in document.split("\n")]
    assert report["sentences"] == len(lines) == 6 * 3010
    assert report["words"] == sum(len(line.split()) for line in lines)
    assert report["duplicate_lines"] == len(lines) - len(set(lines)) >= 60
    first = json.loads(rows[0])["text"]
    assert texts[0][0].replace("\n", " ") == first


def test_a_mistake_is_one_line_and_leaves_nothing_behind(tmp_path):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("\n".join(corpus_rows(50)))
    bad.write_text("{oops\n")
    for arguments, told in (
        ((f"--input_file={good},{bad}",), "bad.jsonl:1: not valid JSON"),
        ((f"--input_file={tmp_path}/none*",), "no input file matches"),
        ((f"--input_file={good}", "--shortest_document=99"), "50 dropped"),
    ):
        done = run_here("tools/prepare_corpus.py", f"--output_file={tmp_path}/out/c.txt", "--num_workers=1", *arguments)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert told in next(line for line in done.stderr.splitlines() if line.startswith("error: "))
        assert list((tmp_path / "out").glob("*") if (tmp_path / "out").exists() else []) == []


@pytest.mark.parametrize(
    ("option", "wanted"),
    [
        ("--near_similarity=0.9", "--drop_duplicates=near"),
        ("--mix=sw=2", "several languages in --input_file"),
        ("--smoothing=0.7", "several languages in --input_file"),
        ("--text_key=body", "--format=jsonl, table or auto"),
        ("--language=de", "files without LANGUAGE: in --input_file"),
    ],
)
def test_options_that_would_do_nothing_are_refused(tmp_path, option, wanted):
    (tmp_path / "a.txt").write_text("A line.\n")
    given = [f"--input_file=sw:{tmp_path}/a.txt", "--format=text", option]
    done = run_here("tools/prepare_corpus.py", *given, f"--output_file={tmp_path}/out/c.txt")
    assert done.returncode == 1 and f"{option.partition('=')[0]}: expected {wanted} with it, got " in done.stderr
    assert not (tmp_path / "out").exists()


def start(root, *arguments):
    return subprocess.Popen(
        [sys.executable, str(root / "tools/prepare_corpus.py"), *map(str, arguments)],
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )


def bytes_kept(work):
    return sum(path.stat().st_size for path in work.glob("*.result"))


def wait_for_pieces(work, least):
    """Waits until so many bytes of cleaned text are kept."""
    deadline = time.monotonic() + 60
    while bytes_kept(work) < least:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def long_source(tmp_path):
    """Text that takes some seconds to split."""
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(list(corpus_rows(1000)) * 30))
    return source


@pytest.mark.slow
def test_a_stopped_run_leaves_its_work_folder_at_most_and_goes_on(root, tmp_path, long_source):
    command = [f"--input_file={long_source}", f"--output_file={tmp_path}/out/c.txt", "--num_workers=1"]
    running = start(root, *command)
    wait_for_pieces(tmp_path / "out" / "c.txt.work", 1000)
    # the first piece is whole
    wait_for_pieces(tmp_path / "out" / "c.txt.work", bytes_kept(tmp_path / "out" / "c.txt.work") + 1)
    begin = time.monotonic()
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=60)
    assert time.monotonic() - begin < 6  # two seconds, and more for a busy machine
    assert (
        running.returncode == 1
        and "error: stopped by SIGTERM; no output was written" in errors
        and "Traceback" not in errors
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["c.txt.work"]
    long_source.write_text("\n".join(corpus_rows(20)))
    done = prepare(root, *command)
    assert (
        done.returncode == 1 and "c.txt.work: holds the finished work of a stopped run with another text" in done.stderr
    )
    assert prepare(root, *command, "--discard").returncode == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["c.txt"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--drop_duplicates=paragraphs", "--drop_duplicates=near", "--held_out=0.1")])
def test_a_killed_run_goes_on_and_gives_the_same_bytes_and_report(root, tmp_path, long_source, options):
    """The workers of a run that was killed end too."""

    def command(folder):
        return [
            f"--input_file={long_source}",
            f"--output_file={tmp_path}/{folder}/c@3",
            "--num_workers=2",
            *options,
            f"--report_file={tmp_path}/{folder}/report.json",
        ]

    assert prepare(root, *command("whole")).returncode == 0
    work, size = tmp_path / "killed" / "c-00000-of-00003.work", 0
    for _ in range(3):
        running = start(root, *command("killed"))
        wait_for_pieces(work, size + 1)
        processes = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_below(pid, running.pid)]
        running.kill()
        running.wait()
        now = sum(path.stat().st_size for path in work.glob("*.result"))
        assert now > size and len(list(work.glob("memory_of_*"))) == 1  # those of earlier runs are gone
        size = now
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in processes):
        assert time.monotonic() < deadline, "a worker process is left over"
        time.sleep(0.1)
    assert prepare(root, *command("killed")).returncode == 0
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "killed" / path.name).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "killed").iterdir())) == len(list((tmp_path / "whole").iterdir()))


def is_below(pid, ancestor):
    """Whether a process was started by another one or by one below it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return parent == ancestor or (parent > 1 and is_below(parent, ancestor))


@pytest.mark.slow
def test_a_killed_worker_is_told_in_one_line(root, tmp_path, long_source):
    running = start(root, f"--input_file={long_source}", f"--output_file={tmp_path}/out/c.txt", "--num_workers=1")
    wait_for_pieces(tmp_path / "out" / "c.txt.work", 1)
    below = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_below(pid, running.pid)]
    os.kill(max(below), signal.SIGKILL)  # started last
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 1 and "Traceback" not in errors
    assert "error: a worker process was killed" in errors


@pytest.mark.parametrize(
    "output, told",
    [
        ("text/out.txt", "would be an input the next time"),
        ("text", "got a folder"),
        ("text/a.txt", "this output is an input too"),
        ("b,b", "expected different names"),
    ],
)
def test_outputs_that_cannot_be_are_told_before_work(tmp_path, output, told):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("Some text.")
    names = ",".join(f"{tmp_path}/{name}" for name in output.split(","))
    given = f"--input_file=en:{tmp_path}/text", f"--output_file={names}", "--num_workers=1"
    done = run_here("tools/prepare_corpus.py", *given)
    assert done.returncode == 1 and told in done.stderr and done.stderr.startswith("error: ")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "text"]


def test_a_disk_that_fills_up_leaves_no_file(root, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out" / "c.txt"
    source.write_text("\n".join(list(corpus_rows(500)) * 10))
    done = subprocess.run(
        [
            *limited(fsize=100_000),
            sys.executable,
            str(root / "tools/prepare_corpus.py"),
            f"--input_file={source}",
            f"--output_file={output}",
            "--num_workers=1",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and f"error: {output}: cannot be written: File too large" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_progress_grows_within_a_file(tool, tmp_path):
    text = "".join(f"{row}\n" for row in list(corpus_rows(1000)) * 6).encode()
    sources = {"plain.jsonl": text, "packed.jsonl.gz": gzip.compress(text)}
    for name, data in sources.items():
        (tmp_path / name).write_bytes(data)
        files, settings = {"en": [str(tmp_path / name)]}, {"form": "auto", "text_key": "text"}
        pieces = list(tool.read_pieces(files, settings, containers.BadText()))
        read = [piece.read for piece in pieces]
        assert len(read) >= 2 and 0 < read[0] < len(data) and sum(read) == len(data)


def test_a_text_with_copies_never_appears_without_its_note(tool, tmp_path, monkeypatch):
    output, published = str(tmp_path / "c.txt"), []
    monkeypatch.setattr(
        WorkFolder, "publish", lambda self, name, target: published.append(provenance.origin_file(target))
    )
    with WorkFolder(str(tmp_path / "c.work"), {}) as work:
        pathlib.Path(work.path_of(tool.part_name(0))).write_text("A text.\n")
        tool.publish(work, [output], [output])
    assert [json.loads(pathlib.Path(note).read_text()) for note in published] == [
        {"file_bytes": 8, "holds_copies": True}
    ]


def read_documents(path):
    return [document for document in path.read_text(encoding="utf-8").strip().split("\n\n") if document]


@pytest.mark.slow
def test_a_pipe_is_read_as_well_as_a_file(root, tmp_path):
    text = "\n".join(corpus_rows(30)).encode()
    command = [
        sys.executable,
        str(root / "tools/prepare_corpus.py"),
        "--input_file=-",
        f"--output_file={tmp_path}/c.txt",
    ]
    done = subprocess.run(
        [*command, "--num_workers=1"], input=gzip.compress(text), capture_output=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert len(read_documents(tmp_path / "c.txt")) == 30


def test_shards_and_held_out_documents_are_all_documents(root, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(corpus_rows(400)))
    done = prepare(
        root, f"--input_file={source}", f"--output_file={tmp_path}/out/c.txt@3", "--held_out=0.1", "--num_workers=1"
    )
    assert done.returncode == 0, done.stderr
    shards = [read_documents(tmp_path / f"out/c.txt-0000{part}-of-00003") for part in range(3)]
    held_out = read_documents(tmp_path / "out/held_out-c.txt")
    assert 20 <= len(held_out) <= 60 and max(map(len, shards)) - min(map(len, shards)) <= 1
    wanted = sorted(json.loads(row)["text"] for row in corpus_rows(400))
    assert sorted(text.replace("\n", " ") for text in sum(shards, held_out)) == wanted


@pytest.mark.slow
def test_a_mixture_has_the_wanted_shares_and_no_file_holds_two_copies(root, tmp_path):
    for name, count, seed in (("large", 300, 1), ("small", 30, 2)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(corpus_rows(count, seed)))
    arguments = (
        f"--input_file=en:{tmp_path}/large.jsonl,sw:{tmp_path}/small.jsonl",
        "--num_workers=1",
        "--mix=en=2,sw=1",
    )
    report = tmp_path / "report.json"
    done = prepare(root, *arguments, f"--output_file={tmp_path}/c@4", f"--report_file={report}")
    assert done.returncode == 0, done.stderr
    values = json.loads(report.read_text())
    assert abs(values["languages"]["sw"]["share_out"] - 1 / 3) < 0.02 and values["languages"]["sw"]["share_in"] < 0.11
    shards = [read_documents(tmp_path / f"c-0000{part}-of-00004") for part in range(4)]
    assert all(len(set(shard)) == len(shard) for shard in shards)
    repeated = values["yield"]["repeated"]["copies of documents (--mix, --smoothing)"]["amounts"]["documents"]
    written = sum(map(len, shards))
    assert written == values["documents"] and written - len(set().union(*shards)) == repeated > 50
    assert all(provenance.holds_copies(f"{tmp_path}/c-0000{part}-of-00004") for part in range(4))
    assert (
        prepare(
            root, f"--input_file={tmp_path}/small.jsonl", "--num_workers=1", f"--output_file={tmp_path}/c@4"
        ).returncode
        == 0
    )
    assert not list(tmp_path.glob(".c-*"))  # another text: its files hold no copies
    few = prepare(root, *arguments, f"--output_file={tmp_path}/d@3")
    assert few.returncode == 1 and "error: --output_file: expected at least 4 files (name@4)" in few.stderr
    assert not list(tmp_path.glob("d*"))


@pytest.mark.slow
def test_duplicates_go_the_same_for_any_number_of_workers_and_stand_in_the_report(root, tmp_path):
    rows = [json.loads(row)["text"] for row in corpus_rows(300)]
    near = [f"{text} New words end here." for text in rows[:40]]
    boiler = "All rights of this text are reserved by the people who wrote it down."
    texts = [
        *rows,
        *rows[:25],
        *near,
        f"{boiler}\n{rows[0]}",
        *(f"{text} Unlike before.\n{boiler}" for text in rows[290:]),
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    made = []
    for workers in (1, 3):
        out, report = tmp_path / f"c{workers}", tmp_path / f"r{workers}"
        done = prepare(
            root,
            f"--input_file={tmp_path}/in.jsonl",
            f"--output_file={out}",
            f"--num_workers={workers}",
            f"--report_file={report}",
            *(f"--drop_duplicates={kind}" for kind in ("documents", "near", "paragraphs")),
        )
        assert done.returncode == 0, done.stderr
        made.append((out.read_bytes(), report.read_bytes()))
    assert made[0] == made[1]
    dropped = json.loads(made[0][1])["yield"]["dropped"]
    assert dropped["exact duplicates of documents"]["amounts"]["documents"] == 25
    assert dropped["near duplicates of documents"]["amounts"]["documents"] >= 36
    documents = read_documents(tmp_path / "c1")
    assert [document.replace("\n", " ") for document in documents[:300]] == rows


def test_an_unknown_language_is_an_error_before_work(tmp_path):
    (tmp_path / "a.txt").write_text("Some text.")
    given = f"--input_file={tmp_path}/a.txt", f"--output_file={tmp_path}/c", "--language=english"
    done = run_here("tools/prepare_corpus.py", *given)
    assert done.returncode == 1 and "error: --language: expected the code of a Wikipedia" in done.stderr


@pytest.mark.parametrize(("count", "share", "held_out"), [(3, 0.1, 1), (21, 0.1, 2), (2, 0.5, 1), (400, 0.1, 40)])
def test_the_first_documents_by_their_hashes_are_held_out_and_at_least_one(tmp_path, count, share, held_out):
    rows = list(corpus_rows(count))
    (tmp_path / "in.jsonl").write_text("\n".join(rows) + "\n")
    done = run_here(
        "tools/prepare_corpus.py",
        f"--input_file={tmp_path}/in.jsonl",
        f"--output_file={tmp_path}/c.txt",
        f"--held_out={share}",
        "--num_workers=1",
    )
    assert done.returncode == 0, done.stderr
    texts = sorted((json.loads(row)["text"] for row in rows), key=document_hash)
    held = [text.replace("\n", " ") for text in read_documents(tmp_path / "held_out-c.txt")]
    assert sorted(held) == sorted(texts[:held_out])
    kept = [text.replace("\n", " ") for text in read_documents(tmp_path / "c.txt")]
    assert kept == [text for row in rows if (text := json.loads(row)["text"]) in texts[held_out:]]


def test_one_document_cannot_be_held_out_and_kept(tmp_path):
    (tmp_path / "in.jsonl").write_text("\n".join([*corpus_rows(1)] * 3) + "\n")
    done = run_here(
        "tools/prepare_corpus.py",
        f"--input_file={tmp_path}/in.jsonl",
        f"--output_file={tmp_path}/c.txt",
        "--held_out=0.5",
        "--num_workers=1",
    )
    assert done.returncode == 1 and not list(tmp_path.glob("*c.txt*"))
    assert "--held_out=0.5: expected at least two different documents, so that one is kept, got 3, all" in done.stderr


def document_hash(text):
    from official_bert.data.raw_text.deduplication import Fingerprinter

    return Fingerprinter(False)([[sentence.strip() + "." for sentence in text.split(".") if sentence.strip()]]).document


def words(text):
    return len(text.replace("-", " ").split())


SPANISH = [
    "La contaminación del agua preocupa mucho a la gente de esta ciudad.",
    "La contamina- ción del aire es menor que la contaminación del agua.",
    "Una o\ufb01cina grande y bien- querida mide el aire de la ciudad cada día.",
]


def test_words_of_pdfs_are_joined_replaced_and_counted_or_told(tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(SPANISH))

    def prepared(*options):
        done = run_here(
            "tools/prepare_corpus.py",
            f"--input_file={tmp_path}/in.txt",
            f"--output_file={tmp_path}/c.txt",
            "--language=es",
            "--num_workers=1",
            f"--report_file={tmp_path}/report.json",
            *options,
        )
        assert done.returncode == 0, done.stderr
        notes = json.loads((tmp_path / "report.json").read_text())["yield"]["notes"]
        return done, (tmp_path / "c.txt").read_text(), {name: note["amounts"] for name, note in notes.items()}

    done, text, notes = prepared()
    assert text.split() == " ".join(SPANISH).split()
    assert notes == {"ligatures": {"ligatures": 1}, "words hyphenated at line ends": {"words": 2}}
    assert f"warning: {3 / words(text):.1%} of the words are hyphenated at line ends or have ligatures" in done.stderr
    done, text, notes = prepared("--pdf_text")
    assert "La contaminación del aire" in text and "oficina" in text and "bien- querida" in text
    assert notes == {
        "ligatures replaced by their letters": {"ligatures": 1},
        "words hyphenated at line ends": {"words": 1},
        "words hyphenated at line ends, joined": {"words": 1},
    }
    assert "warning" not in done.stderr
    done = run_here("tools/prepare_corpus.py", "--input_file=-", f"--output_file={tmp_path}/d.txt", "--pdf_text")
    assert done.returncode == 1 and "--pdf_text: expected files, which it reads twice with it" in done.stderr
