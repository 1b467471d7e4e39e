"""Apache Beam: the same files as the sharded order on one machine."""

import tracemalloc

import made_tokenizers
import numpy as np
import pytest
from commands import run_here
from needed_tools import need

from official_bert.data.pretraining import token_store
from official_bert.data.pretraining.generator import Generator
from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.data.pretraining.poor_corpora import poor_shards
from official_bert.data.pretraining.scratch import Scratch
from official_bert.text import loading

need("apache_beam")


@pytest.fixture(scope="module", autouse=True)
def beam():
    """Imported here, because each process collects all files, and one of them runs this one."""
    global beam_generation
    from official_bert.tools.generation import beam_generation


IN_PROCESS = ["--runner=DirectRunner", "--direct_num_workers=1"]
TWO_WORKERS = ["--runner=DirectRunner", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]


def write_text(folder, golden):
    """Four files, one of them empty and one without a blank line at its end."""
    parts = [
        (golden / "text_a.txt").read_bytes(),
        b"\n",
        (golden / "text_b.txt").read_bytes().rstrip(b"\n"),
        b"It rained.\nNobody knew.\n" + b"\nIt rained again.\n" * 5,
    ]
    paths = [folder / f"text-{number}.txt" for number in range(4)]
    for path, part in zip(paths, parts):
        path.write_bytes(part)
    return [str(path) for path in paths]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["roberta", "xlm_roberta", "mpnet"])
def test_beam_writes_the_same_files_with_another_tokenizer(tmp_path, golden, kind):
    config = InstanceConfig(
        max_seq_length=64,
        max_predictions_per_seq=10,
        dupe_factor=2,
        sentence_task="none",
        masking=MaskingConfig(strategy="whole_word"),
    )
    assert_same_files(
        tmp_path, golden, config, 3, False, IN_PROCESS, made_tokenizers.write(tmp_path / "tokenizer", kind)
    )


def write_local(paths, vocab, outputs, config, folder, compress=False):
    description = token_store.describe(paths, vocab, True, "error", True)
    tokenizer = loading.load_lines(vocab, True)
    store = token_store.build_store(str(folder / "store"), description, tokenizer)
    facts = VocabularyFacts.of(loading.load(vocab))
    return store, Generator(store, config, facts, 7, Scratch(str(folder))).write(outputs, "sharded", compress)


@pytest.mark.slow
@pytest.mark.parametrize(
    "compress, shards, masking",
    [(False, 3, MaskingConfig()), (True, 60, MaskingConfig(strategy="whole_word")), (False, 2, None)],
)
def test_beam_writes_the_files_of_the_sharded_order(tmp_path, golden, compress, shards, masking):
    config = InstanceConfig(
        max_seq_length=64, max_predictions_per_seq=10, dupe_factor=3, masking=masking, copies_apart=shards == 3
    )
    assert_same_files(tmp_path, golden, config, shards, compress, IN_PROCESS)


@pytest.mark.slow
def test_two_worker_processes_write_the_files_of_the_sharded_order(tmp_path, golden):
    config = InstanceConfig(max_seq_length=64, max_predictions_per_seq=10, dupe_factor=3)
    assert_same_files(tmp_path, golden, config, 4, False, TWO_WORKERS)


def assert_same_files(tmp_path, golden, config, shards, compress, options, vocab=""):
    paths, vocab = write_text(tmp_path, golden), vocab or str(golden / "vocab_uncased.txt")
    names = [f"out-{shard}" for shard in range(shards)]
    for folder in ("local", "beam"):
        (tmp_path / folder).mkdir()
    store, counted = write_local(
        paths, vocab, [str(tmp_path / "local" / name) for name in names], config, tmp_path, compress
    )
    account, poor = beam_generation.generate(
        paths, [str(tmp_path / "beam" / name) for name in names], vocab, True, "error", config, 7, compress, options
    )
    names += [f".{name}.made_with.json" for name in names]
    assert sorted(path.name for path in (tmp_path / "beam").iterdir()) == sorted(names)
    for name in names:
        assert (tmp_path / "beam" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()
    # few pieces continue a word; a tokenizer learned from a page has more
    least = 2 if vocab.endswith("vocab_uncased.txt") else 1
    continuing = store.count_within(VocabularyFacts.of(loading.load(vocab)).continues_word)
    assert account["continuing"] == continuing and account["tokens"] == len(store.tokens) > least * continuing > 0
    assert account["documents"] > 20 and account["counts"].instances > 300
    assert account["counts"] == counted and (counted.truncated_examples or not counted.truncated)
    assert (counted.copies > 0) == config.copies_apart
    assert poor == poor_shards(store, shards) and (len(poor) > 30) == (shards == 60)


def test_a_shard_s_documents_are_held_one_at_a_time(tmp_path):
    facts = VocabularyFacts(100, 2, 3, 4, np.zeros(100, np.bool_), np.arange(100))

    def documents():
        for number in reversed(range(40)):  # 1 MB each, in any order
            yield beam_generation.TokenizedDocument(
                number % 3,
                number,
                np.full(10, 50_000, np.int64).tobytes(),
                np.full(500_000, number, np.uint16).tobytes(),
            )
            yield None

    tracemalloc.start()
    store, order = beam_generation.gather(documents(), facts, Scratch(str(tmp_path)))
    assert tracemalloc.get_traced_memory()[1] < 4_000_000
    tracemalloc.stop()
    firsts = store.tokens[store.sentence_starts[store.document_starts[order]]].tolist()
    assert firsts == sorted(range(40), key=lambda number: (number % 3, number))
    assert store.num_sentences == 400 and len(store.tokens) == 40 * 500_000


def test_files_without_a_token_are_refused(tmp_path, golden):
    (tmp_path / "text").write_bytes(b"\n\n")
    with pytest.raises(ValueError, match="not one token"):
        beam_generation.generate(
            [str(tmp_path / "text")],
            [str(tmp_path / "out")],
            str(golden / "vocab_uncased.txt"),
            True,
            "error",
            InstanceConfig(),
            7,
            False,
            IN_PROCESS,
        )


def test_raw_text_is_refused_as_on_one_machine(tmp_path, golden):
    (tmp_path / "text").write_text('<doc id="1" title="Brno">\nIt rained.\n</doc>\n')
    with pytest.raises(ValueError, match="text: expected text with a sentence on each line, got .*prepare_corpus"):
        beam_generation.generate(
            [str(tmp_path / "text")],
            [str(tmp_path / "out")],
            str(golden / "vocab_uncased.txt"),
            True,
            "error",
            InstanceConfig(),
            7,
            False,
            IN_PROCESS,
        )


def test_a_pattern_without_a_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no file matches"):
        beam_generation.match_files(f"{tmp_path}/*.txt")


def test_folders_and_globs_without_a_folder_match_as_on_one_machine(tmp_path, monkeypatch):
    (tmp_path / "folder" / "below").mkdir(parents=True)
    for name in ("folder/b", "folder/below/a", "part-1", "part-2"):
        (tmp_path / name).write_text("It rained.\n")
    monkeypatch.chdir(tmp_path)
    assert beam_generation.match_files("part-*") == ["part-1", "part-2"]
    assert beam_generation.match_files("part-2,folder,") == ["part-2", "folder/b", "folder/below/a"]


@pytest.mark.parametrize(
    "message, arguments",
    [
        ("expected the name of a file to write, got a folder", ["--output_file=kept"]),
        (
            "would be an input the next time, since te*.txt matches it",
            ["--input_file=te*.txt", "--output_file=tex.txt"],
        ),
        ("/dev/null: cannot be written", ["--report_file=/dev/null/report.json"]),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_before_the_work(tmp_path, golden, monkeypatch, message, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes").write_text("mine")
    (tmp_path / "text.txt").write_text("One went.\nTwo came.\n\nThree ran.\nFour sat.\n")
    done = run_here(
        "tools/create_pretraining_data.py",
        "--input_file=text.txt",
        f"--vocab_file={golden / 'vocab_uncased.txt'}",
        "--output_file=out",
        "--engine=beam",
        *arguments,
    )
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "notes", "text.txt"]


def test_the_text_is_not_written_over(tmp_path, golden):
    text = tmp_path / "text.txt"
    text.write_bytes(b"One went.\nTwo came.\n\nThree ran.\nFour sat.\n")
    for path, more in ((text, []), (tmp_path / "out", [f"--report_file={text}"])):
        done = run_here(
            "tools/create_pretraining_data.py",
            f"--input_file={text}",
            f"--vocab_file={golden / 'vocab_uncased.txt'}",
            f"--output_file={path}",
            "--engine=beam",
            *more,
        )
        assert done.returncode == 1 and "text.txt: this output is an input too" in done.stderr
    assert text.read_bytes().startswith(b"One went.")
