"""The two ways of running a story, and the tiny pre-trained model that several begin with."""

import re

import pytest
import toy_world
from commands import PRETRAIN, ByProcesses, InThisProcess

TINY = """\
task: pretraining
model: {vocab_size: VOCAB_SIZE, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64,
        max_position_embeddings: 64, initializer_range: 0.15, hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0}
options: {max_seq_length: 32, max_predictions_per_seq: 4}
optimizer: {learning_rate: 0.015, warmup_steps: 30, beta_2: 0.98}
training: {batch_size: 32, steps: 500, log_every: 100, save_every: 200}
"""


@pytest.fixture(
    scope="session",
    params=[InThisProcess, pytest.param(ByProcesses, marks=pytest.mark.slow)],
    ids=["in_this_process", "by_processes"],
)
def way(request):
    """Returns the class that runs commands."""
    return request.param


@pytest.fixture
def person(way, tmp_path):
    """Returns somebody in an empty folder."""
    return way(tmp_path)


@pytest.fixture(scope="session")
def pretrained(way, tmp_path_factory):
    """Returns a person whose folder holds the results of pre-training on raw text: vocab.txt, train.tfrecord,
    tiny.yaml, runs/tiny.
    """
    person = way(tmp_path_factory.mktemp("pretrained"))
    toy_world.write_corpus(person.folder / "raw.jsonl")
    person.types("python tools/prepare_corpus.py --input_file=raw.jsonl --output_file=corpus.txt --num_workers=1")
    done = person.types(
        "python tools/build_vocab.py --input_file=corpus.txt --output_file=vocab.txt --vocab_size=160 --num_unused=5 "
        "--num_workers=1"
    )
    size = re.search(r"set model.vocab_size to (\d+)", done.out).group(1)
    (person.folder / "tiny.yaml").write_text(TINY.replace("VOCAB_SIZE", size), encoding="utf-8")
    person.types(
        "python tools/create_pretraining_data.py --input_file=corpus.txt --output_file=train.tfrecord "
        "--vocab_file=vocab.txt --max_seq_length=32 --max_predictions_per_seq=4 --dupe_factor=10"
    )
    person.types(PRETRAIN)
    return person
