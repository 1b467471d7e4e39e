"""From paragraphs and questions to a search that is served: negatives, vectors, a reranker, both behind one server."""

import json

import numpy as np
import pytest
import yaml
from commands import SERVE, ask, printed_metrics
from made_finetuning import make_config

import official_bert
from official_bert.config import to_dict

PLACES = ("city", "river", "road", "school", "church", "house", "island", "station")
SUBJECTS = ("music", "film", "war", "book", "air", "water", "family", "football")
QUESTIONS = (
    "what is known of the {place} of {subject}",
    "tell about {subject} in the {place}",
    "where is the {place} with {subject}",
)


def paragraphs():
    """A paragraph for each place and subject: only both words together tell which one answers."""
    return {
        (place, subject): f"the {place} is known for its {subject} and was called so by many"
        for place in PLACES
        for subject in SUBJECTS
    }


def write_files(folder):
    """Writes pairs of questions and paragraphs (SQuAD's, as columns), and held-out questions on the same paragraphs."""
    rng = np.random.default_rng(0)
    rows = [
        (form.format(place=place, subject=subject), text)
        for form in QUESTIONS
        for (place, subject), text in paragraphs().items()
    ]
    rows = [rows[number] for number in rng.permutation(len(rows))]
    for name, part in (("train", rows[:-24]), ("dev", rows[-24:])):
        (folder / f"{name}.tsv").write_text("text\ttext_pair\n" + "".join("\t".join(row) + "\n" for row in part))
    (folder / "paragraphs.csv").write_text("text\n" + "\n".join(paragraphs().values()) + "\n")
    config = make_config(
        "retrieval",
        options={"max_seq_length": 24, "group_size": 16, "negative_columns": ["negatives"]},
        optimizer={"learning_rate": 3e-3},
        training={"batch_size": 32, "eval_batch_size": 32, "epochs": 25.0},
        model={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
    )
    for task, options in (
        ("retrieval", config.options),
        ("reranking", {"max_seq_length": 40, "negative_columns": ["negatives"]}),
    ):
        values = to_dict(config) | {"task": task, "options": options}
        if task == "reranking":  # with the other rate, one seed of three stays near chance
            values["training"]["epochs"], values["optimizer"]["learning_rate"] = 120.0, 2e-3
        (folder / f"{task}.yaml").write_text(yaml.safe_dump(values))


def metrics_of(done):
    """Reads the metrics that an evaluation prints."""
    return printed_metrics(done.out)


@pytest.mark.slow
def test_from_paragraphs_to_a_served_search_with_reranking(person):
    write_files(person.folder)
    mine = "python tools/mine_negatives.py --corpus_file=paragraphs.csv"
    person.types(f"{mine} --train_file=train.tsv --output_file=mined.jsonl --negatives=4")
    person.types(f"{mine} --train_file=dev.tsv --output_file=dev_mined.jsonl --negatives=9")
    tune = "python -m official_bert.run_finetuning --cache_dir= --data_dir="
    search = person.types(
        f"{tune} --config=retrieval.yaml --train_file=mined.jsonl --eval_file=dev.tsv --output_dir=runs/search"
    )
    assert metrics_of(search)["mrr"] > 0.5, search.out
    done = person.types(
        f"{mine} --train_file=train.tsv --model=runs/search --output_file=harder.jsonl --negatives=4 --last_rank=20"
    )
    assert "168 pairs with 4.0 negatives" in done.out
    reranker = person.types(
        f"{tune} --config=reranking.yaml --train_file=harder.jsonl --eval_file=dev_mined.jsonl "
        "--output_dir=runs/reranker"
    )
    assert metrics_of(reranker)["mrr_at_10"] > 0.5, reranker.out
    person.types(
        "python -m official_bert.run_export --checkpoint=runs/search --output=models/vectors --normalize "
        "--warmup_batch_sizes="
    )
    person.types(
        "python -m official_bert.run_export --checkpoint=runs/reranker --output=models/reranker --warmup_batch_sizes="
    )

    texts = list(paragraphs().values())
    vectors = official_bert.Predictor(str(person.folder / "models/vectors")).embed(texts, "passage")
    asked = [line.split("\t") for line in (person.folder / "dev.tsv").read_text().splitlines()[1:]]
    query = official_bert.Predictor(str(person.folder / "models/vectors")).embed(
        [question for question, _ in asked], "query"
    )
    first = np.argsort(-(query @ vectors.T), axis=1)[:, :10]
    pairs = [
        {"text": question, "text_pair": texts[number]} for (question, _), row in zip(asked, first) for number in row
    ]
    by_server = []
    person.types(
        f"{SERVE} --model_base_path=models/reranker/text --model_name=reranker", **ask("reranker", pairs, by_server)
    )
    scores = np.array([answer["score"] for answer in by_server]).reshape(len(asked), 10)
    ranked = official_bert.Predictor(str(person.folder / "runs/reranker")).rank(
        asked[0][0], [texts[number] for number in first[0]]
    )
    assert [one["index"] for one in ranked][:3] == np.argsort(-scores[0], kind="stable")[:3].tolist()
    answers = [[texts[row[place]] for place in np.argsort(-score, kind="stable")] for row, score in zip(first, scores)]
    found = np.mean([answer in row[:3] for (_, answer), row in zip(asked, answers)])
    assert found > 0.5, (found, json.dumps(answers[0]))  # chance: 0.05
