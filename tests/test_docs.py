"""The pages are true: examples run, links and file names exist."""

import importlib.util
import pathlib
import re
import types

import made_checkpoints
import numpy as np
import pytest
from oracles import texts as oracle

import official_bert
from official_bert.config import Config, ModelConfig, OptimizerConfig, TokenizerConfig, TrainingConfig
from official_bert.models.interchange import formats
from official_bert.runs import whole_run
from official_bert.tasks.data import DataFiles
from official_bert.tasks.loading import MODULES, task_class
from official_bert.text.vocab import read_entries
from official_bert.training.machines.cluster import Placement
from official_bert.typed_values import dotted_keys, kinds_of

ROOT = pathlib.Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_task_of_the_guide_trains_and_answers(golden, tmp_path):
    page = (ROOT / "docs/make_it_your_own.md").read_text(encoding="utf-8")
    module = types.ModuleType("questions")
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL).group(1), module.__dict__)
    words = ["the", "copper", "atlas", "rained", "her", "neighbour"]
    lines = [
        f"{first} {' '.join(words[i % 5 : i % 5 + 2])}{'?' if first == 'was' else '.'}"
        for i in range(60)
        for first in ("was", "that")
    ]
    for name, part in (("train.txt", lines[:96]), ("dev.txt", lines[96:])):
        (tmp_path / name).write_text("\n".join(f"{line}" for line in part) + "\n")
    config = Config(
        task="questions",
        tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")),
        optimizer=OptimizerConfig(learning_rate=3e-3, schedule="constant"),
        training=TrainingConfig(batch_size=16, eval_batch_size=8, epochs=6.0, log_every=1000),
        model=ModelConfig(
            vocab_size=3000,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=32,
            initializer_range=0.1,
        ),
        options={"max_seq_length": 16},
    )
    (tmp_path / "dev.txt").write_text(
        "was rained atlas?\nthat neighbour rained.\nwas neighbour her?\nthat rained atlas.\n"
    )
    task = module.Task(config)
    trained = whole_run.train(
        task, DataFiles(data_dir=str(tmp_path)), str(tmp_path / "run"), Placement(), report=lambda _: None
    )
    assert trained.metrics["accuracy"] == 1.0
    assert oracle.encode(task, [{"text": "was it"}])[0]["input_ids"].shape == (4,)


@pytest.mark.slow  # test_facade.py and test_python_tables.py call all of these functions
def test_the_examples_of_python_run(golden, tmp_path, monkeypatch, eager_predictors, eager_steps):
    monkeypatch.chdir(tmp_path)
    words = read_entries(str(golden / "vocab_uncased.txt"))
    for head, name, kind in (
        ("pretraining", "bert-base-uncased", "hugging_face"),
        ("span", "runs/squad", "ours"),
        ("choice", "runs/swag", "ours"),
    ):
        stored = made_checkpoints.stored_small(head, vocab_size=3000, max_position_embeddings=128, num_hidden_layers=1)
        formats.write(formats.dataclasses.replace(stored, vocab=words, do_lower_case=True), kind, name)
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, names)
    assert names["outputs"]["sequence_output"].shape == (2, names["inputs"]["input_ids"].shape[1], 8)
    assert names["logits"].shape == (2, 1, 3000) and len(names["answer"]["tokens"][0]) == 3
    assert [len(answer["tokens"]) for answer in names["answers"]] == [1, 2]
    assert set(names["tuned"].metrics) >= {"accuracy", "loss"}
    names["model"].save("bert.keras")
    assert (
        official_bert.load_model("bert.keras")({**names["inputs"], "masked_lm_positions": np.array([[2], [2]])})[
            "mlm_logits"
        ].numpy()
        == names["logits"].numpy()
    ).all()


@pytest.mark.slow  # it trains four models
def test_what_one_types_instead_of_transformers_runs(golden, tmp_path, monkeypatch, eager_predictors, eager_steps):
    monkeypatch.chdir(tmp_path)
    stored = made_checkpoints.stored_small("pretraining", vocab_size=3000, max_position_embeddings=384)
    words = read_entries(str(golden / "vocab_uncased.txt"))
    formats.write(formats.dataclasses.replace(stored, vocab=words, do_lower_case=True), "hugging_face", "bert")
    context, answers = "the copper atlas rained", {"text": ["atlas"], "answer_start": [11]}
    names = {
        "B": official_bert,
        "folder": "bert",
        "text": "the neighbour rained",
        "texts": ["the atlas", "her copper"],
        "blank": "the [MASK] rained.",
        "mails": [{"text": f"{word} atlas {number}", "label": word} for word in ("was", "her") for number in range(2)],
        "more_mails": [{"text": "was rained", "label": "was"}, {"text": "her rained", "label": "her"}],
        "tagged": [{"tokens": ["the", "copper"], "ner_tags": ["O", "B-X"]}] * 4,
        "question": "what rained?",
        "context": context,
        "questions": [{"id": str(n), "question": "what?", "context": context, "answers": answers} for n in range(4)],
    }
    page = (ROOT / "docs/start/other_libraries.md").read_text(encoding="utf-8")
    section = page.partition("## Hugging Face transformers\n")[2].partition("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `")]
    assert 10 <= len(rows) <= 40
    for line in (row.split(" | ")[1].split("`")[1] for row in rows):
        exec(line, names)
    assert names["decoded"] == names["text"] and names["hidden"].shape[0] == 2 and names["logits"].shape == (2, 3)
    assert len(names["filled"]) == 1 and names["vectors"].shape[0] == 2
    assert "accuracy" in names["metrics"] and names["labels"][0]["label"] in ("was", "her")
    assert isinstance(names["entities"], list) and isinstance(names["answer"], str)
    assert names["written"] == ["models/mails/text/1", "models/mails/ids/1"]
    assert (tmp_path / "adapted/base.json").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_and_named_files_are_there(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([\w./:-]+)\)", text):
        assert "://" in target or (page.parent / target).exists(), target
    for name in re.findall(r"python ((?:tools|benchmarks|deploy)/\w+\.py)", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"python -m (official_bert\.\w+)", text):
        assert (ROOT / f"{name.replace('.', '/')}.py").exists(), name
    for name in re.findall(r"(configs/\w+/\w+\.yaml)", text):
        assert (ROOT / name).exists(), name


def test_the_paper_s_sections_lead_to_names_that_are_there():
    rows = [
        line
        for line in (ROOT / "docs/paper_to_code.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    rows = [line.split(" | ") for line in rows if not line.startswith("| paper")]
    assert len(rows) > 30
    for *_, code, tests in rows:
        for target, line, names in re.findall(r"\]\(\.\./([\w./]+)(?:#L(\d+))?\)((?:,? `\w+`)*)", code):
            text = (ROOT / target).read_text(encoding="utf-8")
            for name in re.findall(r"`(\w+)`", names):
                found = re.search(
                    rf"^ *(?:def |class ){name}\b" if line else rf"^(def |class )?{name}\b", text, re.MULTILINE
                )
                assert found, f"{target}: {name}"
                place = text[: found.start()].count("\n") + 1
                assert not line or int(line) == place, f"{target}: {name} is defined in line {place}"
        assert re.findall(r"\]\(\.\./(tests/[\w./]+)\)", tests), tests


def test_the_page_of_options_is_what_the_fields_say():
    spec = importlib.util.spec_from_file_location("write_options", ROOT / "docs" / "write_options.py")
    write_options = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(write_options)
    page = write_options.page()
    assert write_options.PAGE.read_text(encoding="utf-8") == page, "make options writes it anew"
    options = {f"options.{name}" for task in MODULES for name in kinds_of(task_class(task).Options)}
    options -= {f"options.{group}" for group in write_options.GROUPS}
    for key in {*dotted_keys(Config), *options} - {"options"}:
        assert f"| `{key}` |" in page, key
