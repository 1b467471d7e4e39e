"""The story of texts of 4,000 tokens: a ModernBERT goes on learning words in packed rows, and becomes a classifier that
is served.
"""

import json
import random

import made_checkpoints
import made_tokenizers
import pytest
from commands import SERVE, ask

import official_bert

WORDS = ("boat", "river", "song", "times", "words", "same")
LENGTH = 4096


def long_texts(tokenizer, count, seed):
    """Yields texts of 4,000 tokens whose words are of one of two kinds, and their kind."""
    draw, sizes = random.Random(seed), {word: len(tokenizer.tokenize_word(word)) for word in WORDS}
    for number in range(count):
        words, size, kind = [], 0, number % 2
        while size < 4000:
            words.append(draw.choice(WORDS[3 * kind : 3 * kind + 3]))
            size += sizes[words[-1]]
        yield " ".join(words), "speech" if kind else "water"


@pytest.mark.slow
def test_a_modernbert_classifies_texts_of_4000_tokens(person):
    made_checkpoints.write_relative(person.folder / "hf", "modernbert", positions=LENGTH + 8)
    tokenizer = official_bert.load_tokenizer(str(person.folder / "hf"))
    (person.folder / "text.txt").write_text("\n\n".join(["\n".join(made_tokenizers.TEXT * 20)] * 4) + "\n")
    for length in (1024, LENGTH):
        predictions = length * 15 // 100
        person.types(
            f"python tools/create_pretraining_data.py --input_file=text.txt --output_file=text{length}.tfrecord "
            f"--vocab_file=hf --max_seq_length={length} --max_predictions_per_seq={predictions} --sentence_task=none",
            messages=(".*",),
        )
        person.types(
            f"python -m official_bert.run_pretraining --init_checkpoint=hf --input_file=text{length}.tfrecord "
            f"--output_dir=runs/more{length} --max_seq_length={length} --max_predictions_per_seq={predictions} "
            "--num_train_steps=2 --set=training.batch_size=2 --set=optimizer.warmup_steps=1 "
            "--set=options.sentence_task=none --set=options.pack=true",
            messages=(".*",),
        )
    for name, count, seed in (("train", 24, 0), ("dev", 8, 1)):
        rows = [json.dumps({"text": text, "label": kind}) for text, kind in long_texts(tokenizer, count, seed)]
        (person.folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    person.types(
        f"python -m official_bert.run_finetuning --task=classification --init_checkpoint=runs/more{LENGTH} "
        f"--train_file=train.jsonl --eval_file=dev.jsonl --output_dir=runs/kinds --set=options.max_seq_length={LENGTH} "
        "--set=training.batch_size=4 --set=training.epochs=3 --set=optimizer.learning_rate=0.01 "
        "--set=training.report=false",
        messages=(".*",),
    )
    person.types(
        "python -m official_bert.run_export --checkpoint=runs/kinds --output=models/kinds --warmup_batch_sizes=",
        messages=(".*",),
    )
    texts = [text for text, _ in long_texts(tokenizer, 4, 2)]
    texts += ["boat", "", texts[0] * 2]
    by_rest, by_grpc = [], []
    person.types(
        f"{SERVE} --model_base_path=models/kinds/text --model_name=kinds",
        **ask("kinds", texts, by_rest, by_grpc),
        messages=(".*",),
    )
    answers = official_bert.Predictor(str(person.folder / "runs/kinds"))(texts)
    assert all(3990 < len(tokenizer.tokenize_ids(text)) <= LENGTH - 2 for text in texts[:4])
    for served in (by_rest, by_grpc):
        assert [bool(answer["truncated"]) for answer in served] == [False] * 6 + [True]
        for answer, other in zip(answers, served, strict=True):
            assert other["label"] == answer["label"]
            assert other["logits"] == pytest.approx(list(answer["logits"]), abs=1e-4)
    assert [answer["label"] for answer in answers[:4]] == ["water", "speech"] * 2
