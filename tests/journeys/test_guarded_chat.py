"""Somebody who must not pass names on: a tagger that redacts, served, whose logs hold nothing of the texts."""

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import numpy as np
import pytest
from commands import ROOT
from made_finetuning import data_files, make_config

from official_bert.interface.predictor import Predictor
from official_bert.run_folder import RunFolder
from official_bert.runs.fine_tuning import FineTuning
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task
from official_bert.tools.client import GrpcClient, RestClient
from official_bert.training.machines.cluster import Placement

pytestmark = pytest.mark.slow
NAMES = ("Zyxwina", "Qvorbert", "Brnopolis")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a run that tags capitalised words, and its export with --redact."""
    folder = tmp_path_factory.mktemp("guard")
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(200):
        for word in rng.choice(["the", "price", "rained", "Anna", "Peter", *NAMES], 6):
            lines.append(f"{word} {'B-PER' if word[0].isupper() else 'O'}")
        lines.append("")
    (folder / "train.conll").write_text("\n".join(lines) + "\n", encoding="utf-8")
    config = make_config(
        "ner",
        options={"max_seq_length": 32, "doc_stride": 8},
        training={"epochs": 8.0},
        optimizer={"learning_rate": 2e-3},
    )
    files = data_files(train_file=folder / "train.conll")
    FineTuning(
        load_task(config), files, RunFolder(str(folder / "run")), Placement(), steps=Steps(evaluate=False)
    ).carry_out()
    command = [
        sys.executable,
        "-m",
        "official_bert.run_export",
        "--checkpoint=run",
        "--output=models/names",
        "--redact",
        "--max_windows=2000",
    ]
    subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)
    return folder


def rebuilt(text, answer):
    """Returns the text with its replacements, by their places."""
    parts, last = [], 0
    for start, end, replacement in zip(answer["starts"], answer["ends"], answer["replacements"]):
        parts += [text[last:start], replacement]
        last = end
    return "".join([*parts, text[last:]])


def test_run_predict_and_exports_redact_and_write_nothing_of_the_texts(folder):
    text = f"the {NAMES[0]} rained {NAMES[1]} the {NAMES[0]}"
    (folder / "texts.jsonl").write_text(json.dumps({"id": 7, "text": text}) + "\n", encoding="utf-8")
    predict = [sys.executable, "-m", "official_bert.run_predict", "--model=run", "--redact"]
    screen = subprocess.run([*predict, text], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    written = [*predict, "--input_file=texts.jsonl", "--keep_columns=id", "--output_file=out.jsonl"]
    done = subprocess.run(written, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    output = (folder / "out.jsonl").read_text(encoding="utf-8")
    for said in (screen.stdout, screen.stderr, output, done.stdout, done.stderr):
        assert not any(name in said for name in NAMES)
    row = json.loads(output)
    assert row["id"] == 7 and row["redacted"] == "the [PER_1] rained [PER_2] the [PER_1]" and "text" not in row
    assert "the [PER_1] rained [PER_2] the [PER_1]" in screen.stdout
    exported = Predictor(str(folder / "models/names"))
    assert exported(text)["redacted"] == row["redacted"] and "entities" not in exported.outputs


def test_a_hundred_kilobytes_are_redacted_by_windows_over_both_protocols_and_no_log_has_a_name(folder):
    serve = "official_bert.serve --models=models --rest_api_port=0 --port=0 --access_log=- --lame_duck_seconds=0.1"
    server = subprocess.Popen(
        [sys.executable, "-m", *serve.split()], cwd=folder, env=ENVIRONMENT, text=True, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        while not (line := server.stdout.readline()).startswith("Serving "):
            assert server.poll() is None, server.stderr.read()
        rest, grpc = re.fullmatch(r"Serving .* (http://\S+); gRPC: (\S+)", line.strip()).groups()
        rng = np.random.default_rng(1)
        short = f"{NAMES[0]} and [PER_4], \N{FAMILY} the {NAMES[2]}"
        long = " ".join(rng.choice(["the", "price", "rained", *NAMES], 1500))  # hundreds of windows
        texts = ["", short, long]
        wanted = Predictor(str(folder / "run"), redact=True)(texts)
        for client in (RestClient(rest, "names"), GrpcClient(grpc, "names")):
            with client:
                answers = list(client.predict(texts))
            for text, answer, other in zip(texts, answers, wanted):
                count = len(other["starts"])
                columns = {name: answer[name][:count] for name in ("starts", "ends", "replacements")}
                assert answer["redacted"] == rebuilt(text, columns) == other["redacted"]
        assert "[PER_5]" in answers[1]["redacted"] and len(answers[2]["starts"]) > 500
        # What goes wrong names no text either.
        bad = [
            {"instances": [" ".join(NAMES * 60_000)]},  # too long
            {"instances": [{"text": NAMES[0], NAMES[1]: 1}]},
            {"instances": [[NAMES[0]]]},
            {"instances": [NAMES[0]], "signature_name": NAMES[1]},
        ]
        for body in bad:
            request = urllib.request.Request(f"{rest}/v1/models/names:predict", json.dumps(body).encode())
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(request, timeout=60)
    finally:
        server.terminate()
        server.wait(60)
    said = server.stdout.read() + server.stderr.read()
    assert '"time"' in said and not any(name in said for name in NAMES)


def test_the_text_of_100_kilobytes_is_redacted_where_the_tagger_finds_its_entities(folder):
    rng = np.random.default_rng(2)
    words = ["the", "price", "rained", *NAMES, "\N{FAMILY}", "e\u0301t", "สมชาย", "中国"]
    text = " ".join(rng.choice(words, 16_000))
    assert len(text.encode()) > 100_000
    plain, redacted = (Predictor(str(folder / "run"), redact=redact)(text) for redact in (None, True))
    assert [redacted[name] for name in ("starts", "ends", "types")] == [
        plain[name] for name in ("starts", "ends", "types")
    ]
    assert redacted["redacted"] == rebuilt(text, redacted) and not any(name in redacted["redacted"] for name in NAMES)
    numbers = {}
    for entity, kind in zip(plain["entities"], plain["types"]):
        numbers.setdefault((kind, entity), f"[{kind}_{len(numbers) + 1}]")
    assert redacted["replacements"] == [numbers[key] for key in zip(plain["types"], plain["entities"])]
