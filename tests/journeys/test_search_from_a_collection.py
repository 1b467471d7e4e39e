"""A person has a collection in BEIR's layout: six commands lead to the first answer of a search with reranking."""

import json
import re
import shutil
import urllib.request

import numpy as np
import pytest
from commands import SERVE, ByProcesses, printed_metrics

from official_bert import Predictor

pytestmark = pytest.mark.slow
PLACES = ("city", "river", "road", "school", "church", "island")
SUBJECTS = ("music", "film", "war", "book", "water", "football")
QUESTIONS = (
    "what is known of the {place} of {subject}",
    "tell about {subject} in the {place}",
    "where is the {place} with {subject}",
    "the {place} and its {subject}",
    "which {place} is known for {subject}",
)
HELD_OUT = 24
BEST = 10  # passages of a search that the reranker sees
TUNE = "python -m official_bert.run_finetuning --data_dir=beir --init_checkpoint=bert"
COMMANDS = (
    f"{TUNE} --task=retrieval --output_dir=runs/search --max_seq_length=32 --set options.group_size=16 "
    "--train_batch_size=32 --learning_rate=3e-3 --num_train_epochs=25",
    f"{TUNE} --task=reranking --output_dir=runs/reranker --max_seq_length=32 --set options.candidates={BEST} "
    f"--set options.most_negatives={BEST} --set options.dropout=0 --train_batch_size=16 --learning_rate=1.5e-3 "
    "--num_train_epochs=60 --set training.eval_epochs=20",
    "python -m official_bert.run_export --checkpoint=runs/search --output=models/search",
    "python -m official_bert.run_export --checkpoint=runs/reranker --output=models/reranker",
    f"{SERVE} --models=models",
    # The sixth is a question to the server.
)
FOUND_BY_WORDS = r".*qrels/train\.tsv: \d+ queries without a passage judged irrelevant: .*"


def write_collection(folder):
    """Writes a passage for each place and subject, both of which a question names, and judgements of the questions.
    Returns the held-out questions, each with the number of its answer.
    """
    draw = np.random.default_rng(0)
    pairs = [(place, subject) for place in PLACES for subject in SUBJECTS]
    (folder / "qrels").mkdir(parents=True)

    def write(name, rows):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    write(
        "corpus.jsonl",
        [
            {
                "_id": f"p{number}",
                "title": f"a {place}",
                "metadata": {},
                "text": f"the {place} is known for its {subject} and was called so by many",
            }
            for number, (place, subject) in enumerate(pairs)
        ],
    )
    questions = [
        (form.format(place=place, subject=subject), number)
        for form in QUESTIONS
        for number, (place, subject) in enumerate(pairs)
    ]
    questions = [questions[number] for number in draw.permutation(len(questions))]
    write("queries.jsonl", [{"_id": f"q{number}", "text": text} for number, (text, _) in enumerate(questions)])
    lines = [f"q{number}\tp{answer}\t1\n" for number, (_, answer) in enumerate(questions)]
    for name, part in (("train", lines[HELD_OUT:]), ("dev", lines[:HELD_OUT])):
        (folder / f"qrels/{name}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(part), encoding="utf-8")
    return questions[:HELD_OUT]


def post(url, body):
    """Returns the JSON that a server answers."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_a_collection_is_searched_at_the_sixth_command(tmp_path, golden):
    person, folder = ByProcesses(tmp_path), tmp_path
    shutil.copytree(golden / "tf1_bert", folder / "bert")
    shutil.copy(golden / "vocab_uncased.txt", folder / "bert/vocab.txt")
    asked = write_collection(folder / "beir")
    questions = [text for text, _ in asked]
    passages = [
        f"{row['title']} {row['text']}"
        for row in map(json.loads, (folder / "beir/corpus.jsonl").read_text("utf-8").splitlines())
    ]
    by_server = {}

    def ask(line):
        url = re.search(r"http://\S+", line)[0].rstrip(";")
        by_server["passages"], by_server["questions"] = (
            np.array(post(f"{url}/embed", {"inputs": texts})) for texts in (passages, questions)
        )
        best = np.argsort(-(by_server["questions"] @ by_server["passages"].T), axis=1, kind="stable")[:, :BEST]
        by_server["best"] = best
        by_server["reranked"] = [
            post(
                f"{url}/rerank", {"query": question, "texts": [passages[number] for number in row], "raw_scores": True}
            )
            for question, row in zip(questions, best)
        ]

    search, reranker, *exports, server = COMMANDS
    assert len(COMMANDS) + 1 == 6
    metrics = [
        printed_metrics(done.out)["ndcg_at_10"]
        for done in (person.types(search), person.types(reranker, messages=(FOUND_BY_WORDS,)))
    ]
    assert min(metrics) > 0.8, metrics
    for export in exports:
        person.types(export)
    person.types(server, until="Serving ", then=ask)

    for path in ("runs/search", "models/search"):
        model = Predictor(folder / path)
        for texts, kind in ((passages, "passages"), (questions, "questions")):
            np.testing.assert_allclose(model.embed(texts), by_server[kind], atol=1e-5)
    for path in ("runs/reranker", "models/reranker"):
        model = Predictor(folder / path)
        for question, row, answer in zip(questions[:3], by_server["best"], by_server["reranked"]):
            ranked, served = (
                {one["index"]: one["score"] for one in answers}
                for answers in (model.rank(question, [passages[number] for number in row]), answer)
            )
            np.testing.assert_allclose(
                [ranked[place] for place in range(BEST)], [served[place] for place in range(BEST)], atol=1e-4
            )
    found = np.mean(
        [
            row[ranked[0]["index"]] == answer
            for (_, answer), row, ranked in zip(asked, by_server["best"], by_server["reranked"])
        ]
    )
    print(f"ndcg_at_10 of both: {metrics}; the right passage is the first one of the server for {found:.0%}")
    assert found > 0.7  # chance: 0.1
