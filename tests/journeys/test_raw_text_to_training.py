"""From raw pages of several languages to the first step of pre-training, by the commands."""

import html
import json
import shlex

import numpy as np
import pytest
import yaml
from made_pretraining import make_config
from needed_tools import need

from official_bert.config import to_dict
from official_bert.data.record_files import records

WORDS = {
    "en": "the river town house old small stone walks under bridge and sees people market in winter every day",
    "ru": "река город дом старый малый камень идёт под мост и видит люди рынок зимой каждый день вечером",
    "zh": "河 城 房 老 小 石 走 下 桥 和 见 人 市 冬 每 日 水 山 大 天",
    "hi": "नदी शहर घर पुराना छोटा पत्थर चलता नीचे पुल और देखता लोग बाज़ार सर्दी हर दिन शाम",
}
FULL_STOP = {"zh": "。", "hi": "।"}
SEQUENCE = 32
# packages of Google's cloud that nobody needs here
BEAMS_OWN = r"Failed to import GCSFileSystem; .*|apitools not found, .*"
CUT_OFF = r"warning: .* of the tokens of running text were dropped: cut off at --max_seq_length .*"


def write_pages(path, language, count):
    """Writes pages of made-up sentences in WikiExtractor's format, each with a heading."""
    rng = np.random.default_rng(count)
    words, between = WORDS[language].split(), "" if language == "zh" else " "
    with open(path, "w", encoding="utf-8") as file:
        for page in range(count):
            lines = [between.join(rng.choice(words, 12)).capitalize() + FULL_STOP.get(language, ".") for _ in range(6)]
            title = html.escape(f"{words[0]} & {page}")
            file.write(
                f'<doc id="{page}" url="http://x/{page}" title="{title}">\n{html.unescape(title)}\n\n'
                f"{words[1]}.\n" + "\n".join(lines) + "\n</doc>\n"
            )


@pytest.fixture
def run(person):
    """Runs a Python command."""

    def call(*command, messages=()):
        return person.types(shlex.join(["python", *command]), messages=messages)

    return call


@pytest.fixture
def vocab(run, tmp_path):
    """Writes pages, text/corpus.txt@2 and vocab.txt; returns the vocabulary."""
    for language, count in (("en", 60), ("ru", 30), ("zh", 20), ("hi", 10)):
        write_pages(tmp_path / f"{language}_wiki_00", language, count)
    inputs = ",".join(f"{language}:{tmp_path}/{language}_wiki_00" for language in WORDS)
    run(
        "tools/prepare_corpus.py",
        f"--input_file={inputs}",
        f"--output_file={tmp_path}/text/corpus.txt@2",
        "--smoothing=0.7",
        "--held_out=0.05",
        "--num_workers=1",
        f"--report_file={tmp_path}/report.json",
    )
    run(
        "tools/build_vocab.py",
        f"--input_file={tmp_path}/text/corpus.txt-*",
        f"--output_file={tmp_path}/vocab.txt",
        "--vocab_size=400",
        "--num_unused=0",
        "--do_lower_case=False",
        "--num_workers=1",
    )
    return (tmp_path / "vocab.txt").read_text().splitlines()


def create_arguments(folder, output):
    """Returns the arguments that make records of the prepared text in the sharded order."""
    return [
        "tools/create_pretraining_data.py",
        f"--input_file={folder}/text/corpus.txt-*",
        f"--vocab_file={folder}/vocab.txt",
        f"--output_file={output}",
        "--order=sharded",
        "--do_lower_case=False",
        f"--max_seq_length={SEQUENCE}",
        "--max_predictions_per_seq=5",
        "--dupe_factor=2",
    ]


def first_loss(run, folder, records_glob, vocab, messages=()):
    """Trains one step on the records; returns its loss."""
    config = to_dict(
        make_config(
            model={"vocab_size": len(vocab), "max_position_embeddings": SEQUENCE},
            tokenizer={"do_lower_case": False},
            options={"max_seq_length": SEQUENCE, "max_predictions_per_seq": 5},
            training={"batch_size": 8, "steps": 1, "log_every": 1},
        )
    )
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    run(
        "-m",
        "official_bert.run_pretraining",
        f"--config={folder}/config.yaml",
        f"--input_file={records_glob}",
        f"--vocab_file={folder}/vocab.txt",
        f"--output_dir={folder}/model",
        messages=messages,
    )
    rows = [json.loads(line) for line in (folder / "model/log.jsonl").read_text().splitlines()]
    [loss] = [row["train/loss"] for row in rows if "train/loss" in row]
    return loss


@pytest.mark.slow
def test_raw_pages_of_four_languages_reach_a_first_training_step(run, vocab, tmp_path):
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["languages"]["hi"]["share_out"] > report["languages"]["hi"]["share_in"]
    assert report["yield"]["units"]["characters"]["percent"]["out"] > 80 and not report["yield"]["warnings"]
    run(*create_arguments(tmp_path, f"{tmp_path}/train.tfrecord@2"), "--num_workers=1", messages=(CUT_OFF,))
    shards = sorted(map(str, tmp_path.glob("train.tfrecord-*")))
    instances = list(records.read_instances(shards))
    unknown = np.mean([instance["input_ids"] == vocab.index("[UNK]") for instance in instances])
    assert len(instances) > 100 and unknown < 0.001  # a few replace masked tokens
    assert abs(first_loss(run, tmp_path, f"{tmp_path}/train.tfrecord-*", vocab) - np.log(len(vocab)) - np.log(2)) < 1


@pytest.mark.slow
def test_files_of_beam_some_of_them_empty_are_taken_by_inspection_and_training(run, vocab, tmp_path):
    need("apache_beam")
    for name, extra in (("here", ()), ("beam", ("--engine=beam", "--beam_options=--runner=DirectRunner"))):
        run(
            *create_arguments(tmp_path, f"{tmp_path}/{name}.tfrecord@200"),
            *extra,
            messages=(CUT_OFF, r"warning: \d+ of 200 output files .*", BEAMS_OWN),
        )
    files = sorted(tmp_path.glob("here.tfrecord-*-of-00200"))
    beam = sorted(tmp_path.glob("beam.tfrecord-*-of-00200"))
    assert [path.read_bytes() for path in files] == [path.read_bytes() for path in beam] and len(beam) == 200
    sizes = [sum(1 for _ in records.read_records(str(path))) for path in beam]
    assert min(sizes) == 0 < max(sizes)
    done = run(
        "tools/inspect_records.py", f"--input_file={tmp_path}/beam.tfrecord-*", f"--vocab_file={tmp_path}/vocab.txt"
    )
    assert f"{sum(sizes)} records" in done.out.replace(",", "")
    empty = rf".*: no record in {sizes.count(0)} of 200 files, the first is .*"
    assert (
        abs(
            first_loss(run, tmp_path, f"{tmp_path}/beam.tfrecord-*", vocab, messages=(empty,))
            - np.log(len(vocab))
            - np.log(2)
        )
        < 1
    )
