"""Fine-tuning from Python: files and tables in memory are one, wrong rows are named, the result answers."""

import csv
import gc
import json

import keras
import numpy as np
import pandas
import pytest
from made_finetuning import VOCAB, make_config

import official_bert
from official_bert.config import ConfigSources
from official_bert.data.tabular.frames import as_source
from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import ours
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.pretrainer import Pretrainer
from official_bert.run_folder import RunFolder
from official_bert.runs.configuration import task_config
from official_bert.tasks.squad.reading import read_squad
from official_bert.tasks.tagging.conll import read_sentences
from official_bert.text.vocab import read_entries

pytestmark = pytest.mark.usefixtures("eager_predictors")

ROWS = [
    {"text": f"{first} {word}", "label": first == "was"}
    for word in ("the copper", "her atlas", "copper her", "atlas the", "her the")
    for first in ("was", "that")
] * 3
HELD_OUT = [{"text": "was her copper", "label": True}, {"text": "that atlas atlas", "label": False}]
SETTINGS = {
    "init_checkpoint": "bert",
    "max_seq_length": 16,
    "epochs": 8.0,
    "batch_size": 8,
    "learning_rate": 5e-3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "log_every": 1000,
    "eval_epochs": 8.0,
    "report": lambda _: None,
}


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a small published checkpoint, `bert`."""
    folder = tmp_path_factory.mktemp("work")
    keras.utils.set_random_seed(1)
    model = Pretrainer.make(make_config("classification").model)
    weights = {name: value.numpy() for name, value in checkpoints.named_weights(model).items()}
    stored = StoredModel(
        origin="a model made here",
        weights=weights,
        table=ours.TABLE,
        config=make_config("classification").model,
        head="pretraining",
        vocab=read_entries(VOCAB),
        do_lower_case=True,
    )
    formats.write(stored, "hugging_face", str(folder / "bert"))
    return folder


@pytest.fixture(autouse=True)
def there(work, monkeypatch):
    monkeypatch.chdir(work)


def graphs_alive():
    gc.collect()
    return {
        id(one)
        for one in gc.get_objects()
        if type(one).__name__ == "FuncGraph" and one.name in ("_run_steps", "_run_evaluation")
    }


@pytest.mark.slow
def test_a_training_leaves_no_weights_in_memory():
    before = graphs_alive()  # of a graph, which holds the variables that it uses
    official_bert.fine_tune(
        "classification", train=ROWS, eval=HELD_OUT, output_dir="forgotten", **{**SETTINGS, "epochs": 0.5}
    )
    assert graphs_alive() <= before


@pytest.mark.slow  # runs/test_announcement.py restores a precision without a training
def test_the_precision_of_a_training_is_not_that_of_later_models(eager_steps):
    settings = SETTINGS | {"epochs": 0.0, "steps": 1, "precision": "bfloat16"}
    tuned = official_bert.fine_tune("classification", train=ROWS, output_dir="half", **settings)
    assert keras.config.dtype_policy().name == "float32"
    assert tuned.evaluate(HELD_OUT)["loss"] > 0 and keras.config.dtype_policy().name == "float32"


@pytest.mark.slow
def test_rows_files_and_frames_train_the_same_model_and_it_answers(work):
    with open("train.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows({**row, "label": str(row["label"]).lower()} for row in ROWS)
    tuned = official_bert.fine_tune(
        "classification", train=ROWS, eval=pandas.DataFrame(HELD_OUT), output_dir="rows", **SETTINGS
    )
    assert tuned.metrics["accuracy"] == 1.0 and tuned.output_dir == "rows"
    answers = tuned.predictor(["was the atlas", "that the atlas"])
    assert [answer["label"] for answer in answers] == ["true", "false"]
    again = official_bert.fine_tune(
        "classification",
        train="train.csv",
        eval=HELD_OUT,
        predict=[{"text": "was atlas"}],
        output_dir="file",
        **SETTINGS,
    )
    assert again.metrics["loss"] == tuned.metrics["loss"]
    card = (work / "file/README.md").read_text()
    assert "fine\\_tune('classification', train='train.csv', eval=&lt;" in card and "predict=&lt;1 rows>" in card
    assert (work / "file/predictions.tsv").read_text().splitlines()[1].startswith("0\ttrue\t")
    assert official_bert.Predictor("file")("was the atlas") == answers[0] | {
        "logits": pytest.approx(answers[0]["logits"], abs=1e-5),
        "probabilities": pytest.approx(answers[0]["probabilities"], abs=1e-5),
    }


@pytest.mark.parametrize(
    ("task", "wrong", "message"),
    [
        ("classification", {"text": "x"}, r"train\[row 3\]: expected a key 'label', found 'text'"),
        ("classification", {"text": None, "label": True}, r"train\[row 3\]: column 'text': expected text, got 'None'"),
        (
            "classification",
            {"text": " ", "label": True},
            r"train\[row 3\]: column 'text': expected text, it is empty .*empty_text=\"skip\" leaves",
        ),
        ("classification", ["x"], r"train\[row 3\]: expected a dict, got \['x'\]"),
        (
            "ner",
            {"tokens": "Anna", "tags": "O"},
            r"train\[row 3\]: expected a list of words under tokens or words, got Anna",
        ),
        (
            "ner",
            {"tokens": ["Anna"], "tags": ["O", "O"]},
            r"train\[row 3\]: expected 1 tags under ner_tags or tags, got \['O', 'O'\]",
        ),
        (
            "ner",
            {"tokens": ["Anna"], "ner_tags": ["PER"]},
            r"train\[row 3\]: expected a tag such as O, B-PER or I-PER, got 'PER'",
        ),
        (
            "squad",
            {"question": "Who?", "context": "Ada.", "answers": []},
            r"train\[row 3\] \(3\): expected exactly 1 answer in training data, got 0",
        ),
        ("squad", {"context": "Ada.", "answers": []}, r"train\[row 3\]: 'question' is missing"),
    ],
)
def test_a_wrong_row_is_named(task, wrong, message, work):
    right = {
        "classification": ROWS[0],
        "ner": {"tokens": ["Anna", "sings"], "tags": ["B-PER", "O"]},
        "squad": {"question": "Who?", "context": "Ada wrote it.", "answers": {"text": ["Ada"], "answer_start": [0]}},
    }[task]
    with pytest.raises(ValueError, match=message):
        official_bert.fine_tune(task, train=[right] * 3 + [wrong], output_dir="wrong", **SETTINGS)
    assert not list((work / "wrong").glob("*.yaml"))


def test_wrong_arguments_are_named():
    for arguments, message in (
        ({"train": 3}, "train: expected a path, a list of dicts, a pandas frame"),
        ({"train": []}, "train: expected rows"),
        ({"train": ROWS, "epoch": 3}, "^epoch: no such keyword; did you mean epochs[?]$"),
        ({"train": ROWS, "num_train_epochs": 3}, "^num_train_epochs: no such keyword; did you mean epochs[?]$"),
        ({"train": ROWS, "traim": "a"}, "^traim: no such keyword; did you mean train[?]$"),
        ({"train": ROWS, "sep": ";"}, "^sep: no such keyword; did you mean delimiter[?]$"),
        ({"train": ROWS, "lr": 1}, "^lr: no such keyword; did you mean learning_rate[?]$"),
        ({"train": ROWS, "batch": 1}, "^batch: no such keyword; did you mean batch_size[?]$"),
        ({"train": ROWS, "per_device_train_batch_size": 1}, "did you mean batch_size[?]$"),
        ({"train": ROWS, "validation_data": ROWS}, "did you mean eval[?]$"),
        ({"train": ROWS, "load_best_model_at_end": True}, 'did you mean answer_with="best"[?]$'),
        ({"train": ROWS, "restore_best_weights": True}, 'did you mean answer_with="best"[?]$'),
        ({"train": ROWS, "zzz": 3}, "^zzz: expected one of seed, "),
        ({"train": ROWS, "init_checkpoint": ""}, "^init_checkpoint: expected the pretrained BERT"),
        (
            {"train": [{"review": "a", "label": 1}], "text_column": "body"},
            "expected a key 'body', found 'review', 'label'; text_column= names another",
        ),
        (
            {"train": [{"text": "", "label": 1}, {"text": "a", "label": 0}, *ROWS]},
            r"it is empty .*; expected empty_text='skip'$",
        ),
        (
            {"train": [{"a": "x y", "b": "y z", "label": 1}, {"a": "q r", "b": "r s", "label": 0}]},
            "expected a key 'text', found 'a', 'b', 'label'; text_column= names another$",  # two rows tell too little
        ),
        (
            {"train": [{"seen": f"was {n} copper", "heard": f"her {n} atlas", "label": n % 2} for n in range(8)]},
            "\ntext_column='seen', label_column='label' or text_column='seen', text_pair_column='heard', ",
        ),
        ({"train": "none.csv"}, "none.csv: no such file"),
        ({"train": ROWS, "task": "clasification"}, "expected one of"),
        ({"train": ROWS, "init_checkpoint": "nowhere"}, "^init_checkpoint=nowhere: no checkpoint"),
        ({"train": ROWS, "hidden_size": 12}, "config.model.hidden_size is 16 there, got 12"),
    ):
        with pytest.raises(ValueError, match=message):
            official_bert.fine_tune(**{"task": "classification", "output_dir": "wrong"} | SETTINGS | arguments)


def test_options_are_keys_of_any_section():
    sources = ConfigSources(flags={"optimizer.learning_rate": 1e-3}, overrides=("options.max_seq_length=16",))
    config = task_config.make_config("mrpc", sources, "bert", "new")
    assert config.task == "glue" and config.options["dataset"] == "mrpc" and config.optimizer.learning_rate == 1e-3
    assert config.model.hidden_size == 16 and config.tokenizer.vocab_file.endswith("vocab.txt")


def test_frames_hold_none_for_missing_cells_and_plain_numbers():
    frame = pandas.DataFrame(
        {"text": ["a", None], "score": [1.5, np.nan], "count": pandas.array([1, None], dtype="Int64")}
    )
    assert as_source(frame, "train").values == [
        {"text": "a", "score": 1.5, "count": 1},
        {"text": None, "score": None, "count": None},
    ]


@pytest.mark.parametrize("places", [("run", ""), ("new", "run")])  # the run's own folder, or --init_checkpoint
def test_a_run_is_measured_with_its_own_vocabulary_alone(tmp_path, golden, places):
    words = (golden / "vocab_uncased.txt").read_text(encoding="utf-8").splitlines()
    (tmp_path / "same.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    (tmp_path / "other.txt").write_text("\n".join([*words[:-2], words[-1], words[-2]]) + "\n", encoding="utf-8")
    (tmp_path / "run").mkdir()
    RunFolder(str(tmp_path / "run")).write_config(make_config("classification"))
    output_dir, init_checkpoint = (str(tmp_path / place) if place else "" for place in places)

    def asked(name):
        path = f"{tmp_path}/{name}"
        for given in (
            ConfigSources(flags={"tokenizer.vocab_file": path}),
            ConfigSources(overrides=(f"tokenizer.vocab_file={path}",)),
        ):
            yield lambda given=given: task_config.make_config("", given, init_checkpoint, output_dir, train=False)

    assert [make().task for make in asked("same.txt")] == ["classification"] * 2
    for make in asked("other.txt"):
        with pytest.raises(
            ValueError, match=rf"--vocab_file={tmp_path}/other\.txt: {tmp_path}/run was trained with another vocabulary"
        ):
            make()


def test_a_yaml_that_yields_to_the_run_is_told(tmp_path, golden):
    run = tmp_path / "run"
    run.mkdir()
    RunFolder(str(run)).write_config(make_config("classification", options={"labels": ["a", "b"], "truncate": "head"}))
    (tmp_path / "base.yaml").write_text("model: {hidden_size: 768}\n")
    (tmp_path / "mine.yaml").write_text("base: base.yaml\noptions: {truncate: tail, labels: [a, b]}\n")
    told = []
    config = task_config.make_config(
        "", ConfigSources(str(tmp_path / "mine.yaml")), "", str(run), train=False, report=told.append
    )
    assert config.options["truncate"] == "head"
    assert told == [
        f"{tmp_path}/mine.yaml: the run in {run} overrides its values, but not those of --set: options.truncate: "
        "'tail' -> 'head'"
    ]


def test_columns_of_one_name_in_a_frame_are_refused():
    with pytest.raises(ValueError, match="train: column 'text' occurs 2 times"):
        as_source(pandas.DataFrame([["right", "wrong", "a"]], columns=["text", "text", "label"]), "train")
    with pytest.raises(ValueError, match="train: column '1' occurs 2 times"):
        as_source(pandas.DataFrame([["a", "b"]], columns=[1, "1"]), "train")


def test_arrays_and_tuples_within_rows_are_lists():
    frame = pandas.DataFrame({"text": ["a"], "label": [np.array(["x", "y"], object)]})
    for rows in (frame, [{"text": "a", "label": np.array(["x", "y"])}], [{"text": "a", "label": ("x", "y")}]):
        assert as_source(rows, "train").values == [{"text": "a", "label": ["x", "y"]}]


class Split(list):
    """What `fine_tune` looks at in a split of the `datasets` library."""

    def __init__(self, rows, **features):
        super().__init__(rows)
        self.features, self.column_names = features, list(rows[0])


class Names:
    """A ClassLabel."""

    def __init__(self, names):
        self.names = names


class Sequences:
    """A Sequence of `feature`."""

    def __init__(self, feature):
        self.feature = feature


def test_numbers_of_classes_become_names():
    split = Split([{"text": "a", "label": 1}, {"text": "b", "label": -1}], text=object(), label=Names(["bad", "good"]))
    assert as_source(split, "train").values == [{"text": "a", "label": "good"}, {"text": "b", "label": None}]
    split = Split(
        [{"tokens": ["Anna", "sings"], "ner_tags": [1, 0]}],
        tokens=Sequences(object()),
        ner_tags=Sequences(Names(["O", "B-PER"])),
    )
    (sentence,) = read_sentences(as_source(split, "train")).sentences
    assert sentence.words == ("Anna", "sings") and sentence.tags == ("B-PER", "O")
    split[0]["ner_tags"] = [-1, None]
    assert as_source(split, "test").values[0]["ner_tags"] == [None, None]
    split.features = None  # of a stream
    assert as_source(split, "test").values == list(split)


def test_a_split_of_the_library_itself():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["bad", "good"]),
            "tags": datasets.Sequence(datasets.ClassLabel(names=["O", "B-PER"])),
        }
    )
    split = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0], "tags": [[0, 1], []]}, features=features)
    assert as_source(split, "train").values == [
        {"text": "a", "label": "good", "tags": ["O", "B-PER"]},
        {"text": "b", "label": "bad", "tags": []},
    ]
    with pytest.raises(ValueError, match="train: expected one split, got a dict of dev"):
        as_source(datasets.DatasetDict({"dev": split}), "train")


def test_questions_in_rows_are_those_of_the_file(golden):
    path = golden / "squad_v1.json"
    rows = [
        {
            "id": question["id"],
            "question": question["question"],
            "context": paragraph["context"],
            "answers": {key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")},
        }
        for article in json.loads(path.read_text())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    from_rows, from_file = read_squad(as_source(rows, "train")), read_squad(str(path))
    assert from_rows.examples == from_file.examples
    trained = read_squad(as_source(rows, "train"), training=True), read_squad(str(path), training=True)
    assert trained[0].examples == trained[1].examples and trained[0].unfound == trained[1].unfound


@pytest.mark.slow  # tasks/tagging/test_tagging_task.py learns them from files
def test_entities_are_learned_from_rows():
    rows = [
        {"words": ["her", "copper"], "tags": ["B-PER", "O"]},
        {"words": ["the", "atlas"], "tags": ["O", "B-LOC"]},
    ] * 10
    tuned = official_bert.fine_tune(
        "ner",
        train=rows,
        eval=[{"words": ["her", "atlas"], "tags": ["B-PER", "B-LOC"]}],
        output_dir="ner",
        doc_stride=8,
        **SETTINGS | {"epochs": 24.0},
    )
    assert tuned.metrics["f1"] == 1.0
    assert tuned.predictor("the atlas")["entities"] == ["atlas"] and tuned.predictor("the atlas")["starts"] == [4]


def test_epochs_beside_steps_are_refused_unless_they_are_those_of_a_file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("task: classification\ntraining: {steps: 9, epochs: 2.0}\n")  # as in the config.yaml of a run
    steps = task_config.make_config("", ConfigSources(str(path), overrides=("training.epochs=0",)), "", "").training
    assert (
        steps.steps,
        steps.epochs,
        task_config.make_config("", ConfigSources(str(path)), "", "").training.epochs,
    ) == (9, 0, 2)
    for given in ({"overrides": ("training.epochs=3",)}, {"flags": {"training.epochs": 3.0}}):
        with pytest.raises(
            ValueError, match=r"config\.training\.epochs: expected config\.training\.steps 0 \(not 9\) with it"
        ):
            task_config.make_config("", ConfigSources(str(path), **given), "", "")
