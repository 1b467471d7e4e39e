"""Relatives with tokenizers of their own are tuned on every task over texts, and their exports answer raw text as the run does."""

import itertools

import made_checkpoints
import numpy as np
import pytest
from commands import run_here

import official_bert
from official_bert.text import loading

TEXTS = ["the little boat", "the river runs", "who crosses the river", "über die Straße", "小船过河", "the ferryman sang a song"]
PAIRS = [(first, second) for first in TEXTS for second in TEXTS if first != second]
NEXT = list(itertools.pairwise(TEXTS))
ENDINGS = {f"ending{number}": text for number, text in enumerate(TEXTS[:4])}
# Data and options of each task, and what to ask.
TASKS = {
    "pairs": ("classification", [{"text": a, "text_pair": b, "label": "yes" if a < b else "no"} for a, b in PAIRS],
              {"text_pair_column": "text_pair"}, PAIRS),
    "reranking": ("reranking", [{"text": a, "text_pair": b, "no": [text for text in TEXTS if text not in (a, b)][:2]} for a, b in NEXT],
                  {"negative_columns": ["no"]}, PAIRS),
    "retrieval": ("retrieval", [{"text": a, "text_pair": b} for a, b in NEXT], {"group_size": 4}, TEXTS),
    "sparse": ("splade", [{"text": a, "text_pair": b} for a, b in NEXT], {"group_size": 4}, TEXTS),
    "choice": ("swag", [{"sent1": a, "sent2": b, "label": 0, **ENDINGS} for a, b in PAIRS],
               {}, [{"text": a, "choices": [b, TEXTS[0]]} for a, b in PAIRS])}


@pytest.mark.slow
@pytest.mark.parametrize("kind", made_checkpoints.CLASSES)
@pytest.mark.parametrize("name", TASKS)
def test_a_relative_is_tuned_on_a_task_and_its_export_answers_raw_text_alike(tmp_path, monkeypatch, name, kind):
    monkeypatch.chdir(tmp_path)
    task, rows, options, asked = TASKS[name]
    checkpoint = made_checkpoints.write_relative(tmp_path / "hf", kind)
    official_bert.fine_tune(task, init_checkpoint=checkpoint, train=rows, output_dir="run", epochs=1, batch_size=4, max_seq_length=24,
                            learning_rate=1e-3, report=lambda _: None, **options)
    done = run_here("-m", "official_bert.run_export", "--checkpoint=run", "--output=model", "--warmup_batch_sizes=")
    assert done.returncode == 0, done.stderr
    by_run, by_export = (official_bert.Predictor(folder)(asked) for folder in ("run", "model"))
    assert len(by_run) == len(asked)
    for answer, other in zip(by_run, by_export):
        assert answer.keys() == other.keys()
        numbers = [key for key in ("logits", "score", "embedding", "weights", "probabilities") if not isinstance(answer.get(key, {}), dict)]
        assert numbers, answer
        for key in numbers:
            np.testing.assert_allclose(other[key], answer[key], atol=1e-5)
    if name == "pairs":
        tokenizer = loading.load(checkpoint)
        encoded = tokenizer.encode(*map(list, zip(*PAIRS)), max_seq_length=24)
        model = official_bert.load_model("run")
        wanted = np.asarray(model(encoded)["logits"])
        np.testing.assert_allclose([answer["logits"] for answer in by_export], wanted, atol=1e-5)
