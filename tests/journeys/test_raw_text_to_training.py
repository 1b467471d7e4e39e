"""From raw pages of several languages to the first step of pre-training, by the commands."""

import html
import json
import shlex

import numpy as np
import yaml
from made_pretraining import make_config

from official_bert.config import to_dict
from official_bert.data import records

WORDS = {"en": "the river town house old small stone walks under bridge and sees people market in winter every day",
         "ru": "река город дом старый малый камень идёт под мост и видит люди рынок зимой каждый день вечером",
         "zh": "河 城 房 老 小 石 走 下 桥 和 见 人 市 冬 每 日 水 山 大 天",
         "hi": "नदी शहर घर पुराना छोटा पत्थर चलता नीचे पुल और देखता लोग बाज़ार सर्दी हर दिन शाम"}
FULL_STOP = {"zh": "。", "hi": "।"}
SEQUENCE = 32


def write_pages(path, language, count):
    """Writes pages of made-up sentences in WikiExtractor's format, each with a heading."""
    rng = np.random.default_rng(count)
    words, between = WORDS[language].split(), "" if language == "zh" else " "
    with open(path, "w", encoding="utf-8") as file:
        for page in range(count):
            lines = [between.join(rng.choice(words, 12)).capitalize() + FULL_STOP.get(language, ".") for _ in range(6)]
            title = html.escape(f"{words[0]} & {page}")
            file.write(f'<doc id="{page}" url="http://x/{page}" title="{title}">\n{html.unescape(title)}\n\n'
                       f"{words[1]}.\n" + "\n".join(lines) + "\n</doc>\n")


def test_raw_pages_of_four_languages_reach_a_first_training_step(person, tmp_path):
    def run(*command, messages=()):
        person.types(shlex.join(["python", *command]), messages=messages)

    for language, count in (("en", 60), ("ru", 30), ("zh", 20), ("hi", 10)):
        write_pages(tmp_path / f"{language}_wiki_00", language, count)
    inputs = ",".join(f"{language}:{tmp_path}/{language}_wiki_00" for language in WORDS)
    run("tools/prepare_corpus.py", f"--input_file={inputs}", f"--output_file={tmp_path}/text/corpus.txt@2", "--smoothing=0.7",
        "--held_out=0.05", "--num_workers=1", f"--report_file={tmp_path}/report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["languages"]["hi"]["share_out"] > report["languages"]["hi"]["share_in"]
    assert report["yield"]["units"]["characters"]["percent"]["out"] > 80 and not report["yield"]["warnings"]
    run("tools/build_vocab.py", f"--input_file={tmp_path}/text/corpus.txt-*", f"--output_file={tmp_path}/vocab.txt",
        "--vocab_size=400", "--num_unused=0", "--do_lower_case=False", "--num_workers=1")
    vocab = (tmp_path / "vocab.txt").read_text().splitlines()
    run("tools/create_pretraining_data.py", f"--input_file={tmp_path}/text/corpus.txt-*", f"--vocab_file={tmp_path}/vocab.txt",
        f"--output_file={tmp_path}/train.tfrecord@2", "--order=sharded", "--do_lower_case=False", f"--max_seq_length={SEQUENCE}",
        "--max_predictions_per_seq=5", "--dupe_factor=2", "--num_workers=1",
        messages=(r"warning: .* of the tokens of running text were dropped: cut off at --max_seq_length .*",))
    shards = sorted(map(str, tmp_path.glob("train.tfrecord-*")))
    instances = list(records.read_instances(shards))
    unknown = np.mean([instance["input_ids"] == vocab.index("[UNK]") for instance in instances])
    assert len(instances) > 100 and unknown < 0.001  # a few replace masked tokens
    config = to_dict(make_config(
        model={"vocab_size": len(vocab), "max_position_embeddings": SEQUENCE},
        options={"max_seq_length": SEQUENCE, "max_predictions_per_seq": 5}, training={"batch_size": 8, "steps": 1, "log_every": 1}))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    run("-m", "official_bert.run_pretraining", f"--config={tmp_path}/config.yaml", f"--input_file={tmp_path}/train.tfrecord-*",
        f"--vocab_file={tmp_path}/vocab.txt", f"--output_dir={tmp_path}/model")
    rows = [json.loads(line) for line in (tmp_path / "model/log.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == 1 and abs(losses[0] - np.log(len(vocab)) - np.log(2)) < 1
