"""Relatives with tokenizers of their own are tuned on every task over texts, and their exports answer raw text as the
run does.
"""

import itertools
import json
import pathlib

import made_checkpoints
import made_tokenizers
import numpy as np
import pytest
from commands import run_here

import official_bert
from official_bert.models.interchange import formats
from official_bert.text import loading

ROOT = pathlib.Path(__file__).parents[4]

TEXTS = [
    "the little boat",
    "the river runs",
    "who crosses the river",
    "über die Straße",
    "小船过河",
    "the ferryman sang a song",
]
PAIRS = [(first, second) for first in TEXTS for second in TEXTS if first != second]
NEXT = list(itertools.pairwise(TEXTS))
ENDINGS = {f"ending{number}": text for number, text in enumerate(TEXTS[:4])}
# Data and options of each task, and what to ask.
TASKS = {
    "pairs": (
        "classification",
        [{"text": a, "text_pair": b, "label": "yes" if a < b else "no"} for a, b in PAIRS],
        {"text_pair_column": "text_pair"},
        PAIRS,
    ),
    "reranking": (
        "reranking",
        [{"text": a, "text_pair": b, "no": [text for text in TEXTS if text not in (a, b)][:2]} for a, b in NEXT],
        {"negative_columns": ["no"]},
        PAIRS,
    ),
    "retrieval": ("retrieval", [{"text": a, "text_pair": b} for a, b in NEXT], {"group_size": 4}, TEXTS),
    "sparse": ("splade", [{"text": a, "text_pair": b} for a, b in NEXT], {"group_size": 4}, TEXTS),
    "choice": (
        "swag",
        [{"sent1": a, "sent2": b, "label": 0, **ENDINGS} for a, b in PAIRS],
        {},
        [{"text": a, "choices": [b, TEXTS[0]]} for a, b in PAIRS],
    ),
}
MORE = {
    "words": (
        "ner",
        [{"words": text.split(), "tags": ["B-X", *["O"] * (len(text.split()) - 1)]} for text in TEXTS],
        {},
        TEXTS,
    ),
    "answers": (
        "squad",
        "squad.json",
        {"doc_stride": 8, "max_query_length": 12},
        [{"question": "who crosses", "context": text} for text in TEXTS],
    ),
}
RELATIVES = (*made_checkpoints.CLASSES, *made_checkpoints.OVER_WORD_PIECES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", made_checkpoints.CLASSES)
@pytest.mark.parametrize("name", TASKS)
def test_a_relative_is_tuned_on_a_task_and_its_export_answers_raw_text_alike(tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)
    task, rows, options, asked = TASKS[name]
    checkpoint = made_checkpoints.write_relative(tmp_path / "hf", kind)
    official_bert.fine_tune(
        task,
        init_checkpoint=checkpoint,
        train=rows,
        output_dir="run",
        epochs=1,
        batch_size=4,
        max_seq_length=24,
        learning_rate=1e-3,
        report=lambda _: None,
        **options,
    )
    done = run_here("-m", "official_bert.run_export", "--checkpoint=run", "--output=model", "--warmup_batch_sizes=")
    assert done.returncode == 0, done.stderr
    by_run, by_export = (official_bert.Predictor(folder)(asked) for folder in ("run", "model"))
    assert len(by_run) == len(asked)
    for answer, other in zip(by_run, by_export):
        assert answer.keys() == other.keys()
        numbers = [
            key
            for key in ("logits", "score", "embedding", "weights", "probabilities")
            if not isinstance(answer.get(key, {}), dict)
        ]
        assert numbers, answer
        for key in numbers:
            np.testing.assert_allclose(other[key], answer[key], atol=1e-5)
    if name == "pairs":
        tokenizer = loading.load(checkpoint)
        encoded = tokenizer.encode(*map(list, zip(*PAIRS)), max_seq_length=24)
        model = official_bert.load_model("run")
        wanted = np.asarray(model(encoded)["logits"])
        np.testing.assert_allclose([answer["logits"] for answer in by_export], wanted, atol=1e-5)


def write_questions(path):
    """Writes questions of SQuAD's format."""
    questions = [
        {
            "context": text,
            "qas": [
                {
                    "id": str(number),
                    "question": "who crosses",
                    "answers": [{"text": text.split()[0], "answer_start": 0}],
                }
            ],
        }
        for number, text in enumerate(TEXTS)
    ]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "river", "paragraphs": questions}]}))


def numbers_in(answer):
    """Returns all numbers of an answer."""
    if isinstance(answer, dict | list | tuple):
        return [
            number for part in (answer.values() if isinstance(answer, dict) else answer) for number in numbers_in(part)
        ]
    return [answer] if isinstance(answer, float) else []


@pytest.mark.slow
@pytest.mark.parametrize("kind", RELATIVES)
def test_every_relative_is_tuned_on_every_task(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    checkpoint = made_checkpoints.write_relative(tmp_path / "hf", kind)
    write_questions(tmp_path / "squad.json")
    for name, (task, rows, options, asked) in {**TASKS, **MORE}.items():
        train = rows if isinstance(rows, str) else rows[:8]
        official_bert.fine_tune(
            task,
            init_checkpoint=checkpoint,
            train=train,
            output_dir=f"run_{name}",
            epochs=1,
            batch_size=4,
            max_seq_length=24,
            learning_rate=1e-3,
            report=lambda _: None,
            **options,
        )
        answers = official_bert.Predictor(f"run_{name}")(asked[:4])
        assert len(answers) == len(asked[:4]) and np.isfinite(numbers_in(answers)).all(), name
        assert name == "words" or numbers_in(answers)  # no word may be one of X
        before, after = (official_bert.load_encoder(path).weights[-3].numpy() for path in (checkpoint, f"run_{name}"))
        assert before.shape == after.shape and np.abs(before - after).max() > 0, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in RELATIVES if kind != "electra_discriminator"])
def test_every_relative_goes_on_with_records_of_its_own_tokenizer(tmp_path, monkeypatch, kind):
    checkpoint = made_checkpoints.write_relative(tmp_path / "hf", kind)
    (tmp_path / "text.txt").write_text("\n\n".join(["\n".join(made_tokenizers.TEXT)] * 3) + "\n")
    monkeypatch.chdir(ROOT)
    done = run_here(
        "tools/create_pretraining_data.py",
        f"--input_file={tmp_path}/text.txt",
        f"--output_file={tmp_path}/text.tfrecord",
        f"--vocab_file={checkpoint}{'' if kind in made_checkpoints.CLASSES else '/vocab.txt'}",
        "--max_seq_length=48",
        "--max_predictions_per_seq=8",
        "--sentence_task=none",
        "--do_whole_word_mask",
        "--num_workers=1",
    )
    assert done.returncode == 0, done.stderr
    done = run_here(
        "-m",
        "official_bert.run_pretraining",
        f"--init_checkpoint={checkpoint}",
        f"--input_file={tmp_path}/text.tfrecord",
        f"--output_dir={tmp_path}/more",
        "--num_train_steps=4",
        "--max_seq_length=48",
        "--max_predictions_per_seq=8",
        "--set=training.batch_size=4",
        "--set=optimizer.warmup_steps=1",
        "--set=options.sentence_task=none",
    )
    assert done.returncode == 0, done.stderr
    again, before = formats.read(str(tmp_path / "more")), formats.read(checkpoint)
    assert again.config == before.config and set(again.weights) >= {
        name for name in before.weights if not name.startswith("next_")
    }
    mask = loading.load(formats.vocab_file_of(again), again.do_lower_case is not False).special["[MASK]"]
    answer = official_bert.Predictor(str(tmp_path / "more"))([f"the little {mask} of the ferryman"])[0]
    assert len(answer["tokens"]) == 1 and np.isfinite(answer["probabilities"]).all()
