import json
import resource
import signal
import subprocess
import sys
import time

import numpy as np


def prepare(root, *arguments):
    return subprocess.run([sys.executable, str(root / "tools/prepare_corpus.py"), *map(str, arguments)], check=False,
                          capture_output=True, text=True, timeout=120)


def corpus_rows(count, seed=0):
    rng = np.random.default_rng(seed)
    words = ["the", "small", "old", "river", "house", "walks", "sees", "under", "over", "quickly", "and", "then", "stone"]
    for _ in range(count):
        sentences = [" ".join(rng.choice(words, rng.integers(5, 12))).capitalize() + "." for _ in range(6)]
        yield json.dumps({"text": " ".join(sentences)})


def test_any_number_of_workers_writes_the_same_files_and_counts_them(root, tmp_path):
    source = tmp_path / "in.jsonl"
    rows = list(corpus_rows(3000))
    source.write_text("\n".join(rows + rows[:10]) + '\n{"text": "Too short."}\n')
    made = {}
    for workers in (1, 3):
        report = tmp_path / f"report{workers}.json"
        outputs = [tmp_path / f"{workers}-{part}.txt" for part in range(2)]
        done = prepare(root, f"--input_file={source}", f"--output_file={outputs[0]},{outputs[1]}",
                       f"--num_workers={workers}", f"--report_file={report}")
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


def test_a_mistake_is_one_line_and_leaves_nothing_behind(root, tmp_path):
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("\n".join(corpus_rows(50)))
    bad.write_text("{oops\n")
    for arguments, told in (((f"--input_file={good},{bad}",), "bad.jsonl:1: not valid JSON"),
                            ((f"--input_file={tmp_path}/none*",), "no input file matches"),
                            ((f"--input_file={good}", "--shortest_document=99"), "50 dropped")):
        done = prepare(root, f"--output_file={tmp_path}/out/c.txt", "--num_workers=1", *arguments)
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert told in next(line for line in done.stderr.splitlines() if line.startswith("error: "))
        assert list((tmp_path / "out").glob("*") if (tmp_path / "out").exists() else []) == []


def test_a_run_that_is_stopped_leaves_nothing_and_a_second_one_works(root, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out" / "c.txt"
    source.write_text("\n".join(list(corpus_rows(1000)) * 30))
    command = [sys.executable, str(root / "tools/prepare_corpus.py"), f"--input_file={source}", f"--output_file={output}",
               "--num_workers=1"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out/*.tmp.*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 1 and "error: stopped by SIGTERM; no output was written" in errors
    assert list((tmp_path / "out").iterdir()) == []
    source.write_text("\n".join(corpus_rows(20)))
    assert prepare(root, *command[2:]).returncode == 0 and output.exists()


def test_a_disk_that_fills_up_leaves_no_file(root, tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out" / "c.txt"
    source.write_text("\n".join(list(corpus_rows(500)) * 10))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # noqa: E731
    done = subprocess.run([sys.executable, str(root / "tools/prepare_corpus.py"), f"--input_file={source}",
                           f"--output_file={output}", "--num_workers=1"], check=False, capture_output=True, text=True,
                          timeout=120, preexec_fn=limit)
    assert done.returncode == 1 and f"error: {output}: cannot be written: File too large" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
