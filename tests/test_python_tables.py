"""Frames, series and a run's own columns as questions and answers; what a run is worth on a table, from Python."""

import dataclasses

import numpy as np
import pandas
import pytest
from made_checkpoints import stored_small

import official_bert
from official_bert.config import Config
from official_bert.models.interchange import formats
from official_bert.run_folder import RunFolder
from official_bert.serving import export
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.data import DataFiles
from official_bert.tasks.loading import load_task, restore_for_inference

pytestmark = pytest.mark.usefixtures("eager_predictors", "eager_steps")

LABELS = ["bad", "fair", "good"]
TEXTS = ["a b", "c", "b b a", "d"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run, never trained, whose texts stand in a column `review` and labels in `stars`."""
    folder = tmp_path_factory.mktemp("runs") / "reviews"
    formats.write(
        dataclasses.replace(stored_small("classifier", num_hidden_layers=1), labels=LABELS), "ours", str(folder)
    )
    config = RunFolder(str(folder)).recorded_config()
    RunFolder(str(folder)).write_config(
        dataclasses.replace(config, options={**config.options, "text_column": "review", "label_column": "stars"})
    )
    return folder


@pytest.fixture(scope="module")
def predictor(run):
    return official_bert.Predictor(run)


@pytest.fixture(scope="module")
def table(predictor):
    """Rows with their right labels but the last, which has another than the answer."""
    labels = [answer["label"] for answer in predictor(TEXTS)]
    return pandas.DataFrame(
        {"review": TEXTS, "stars": [*labels[:-1], next(label for label in LABELS if label != labels[-1])]},
        index=[10, 20, 30, 40],
    )


def test_frames_series_arrays_and_own_columns_are_answered_as_lists_are(predictor, table):
    answers = predictor(TEXTS)
    assert all(
        list(answer["probabilities"]) == LABELS
        and answer["label"] == max(answer["probabilities"], key=answer["probabilities"].get)
        for answer in answers
    )
    for given in (
        np.array(TEXTS),
        [{"review": text} for text in TEXTS],
        [{"text": text} for text in TEXTS],
        [[text] for text in TEXTS],
    ):
        assert predictor(given) == answers
    assert predictor(table.iloc[0]) == predictor({"review": "a b", "id": 3}) == predictor("a b")
    for given in (table, table["review"], table[["review"]].rename(columns={"review": "text"})):
        frame = predictor(given)
        assert list(frame.index) == [10, 20, 30, 40] and list(frame["label"]) == [answer["label"] for answer in answers]
        assert [f"probability:{label}" for label in LABELS] == [
            name for name in frame if name.startswith("probability")
        ]
        assert frame["probability:fair"].tolist() == [answer["probabilities"]["fair"] for answer in answers]
    assert predictor(table.iloc[:0]).empty and predictor([]) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"a", "b"},
            "expected a list of texts, a text, a pandas frame or series, or a split of datasets, got set; list",
        ),
        ((text for text in TEXTS), "got generator; list"),
        (b"a", "got bytes"),
        (3, "got int 3"),
        ([3], "row 1: expected text, got 3"),
        (pandas.DataFrame({"title": ["a"]}), "texts: expected columns 'review' or 'text', found 'title'; rename them"),
        (pandas.DataFrame({"review": ["a", 3]}), r"texts\[row 1\]: column 'review': expected text, got 3"),
        ([{"review": 3}], "row 1: column 'review': expected text, got 3"),
        (pandas.Series(["a", None]), "row 2: expected text"),
    ],
)
def test_other_iterables_and_frames_of_other_columns_are_refused_with_the_reason(predictor, given, told):
    with pytest.raises(ValueError, match=told):
        predictor(given)


@pytest.mark.slow
def test_a_run_is_measured_on_a_table_and_its_mistakes_are_a_frame(run, predictor, table):
    tuned = official_bert.load_run(run)
    assert tuned.evaluate(table)["accuracy"] == predictor.evaluate(table.to_dict("records"))["accuracy"] == 0.75
    found = tuned.mistakes(table)
    wrong = predictor("d")
    assert list(found.columns) == ["text", "label", "answer", *(f"probability:{label}" for label in LABELS)] and list(
        found.index
    ) == [3]
    assert found.loc[3].tolist()[:3] == ["d", table["stars"].iloc[3], wrong["label"]]
    assert found.loc[3].tolist()[3:] == pytest.approx(list(wrong["probabilities"].values()), abs=1e-5)
    assert tuned.mistakes(table.iloc[:3]).empty
    with pytest.raises(ValueError, match="expected data, as in mistakes"):
        tuned.mistakes()
    with pytest.raises(ValueError, match="expected a key 'stars', found 'review'; label_column= names another"):
        tuned.evaluate([{"review": "a"}])


@pytest.mark.slow
def test_a_file_is_measured_with_the_reading_options_of_training(run, predictor, table, tmp_path):
    path = tmp_path / "mails.csv"
    path.write_bytes(
        table.rename(columns={"review": "body"}).assign(body="schön").to_csv(sep=";", index=False).encode("cp1252")
    )
    options = {"encoding": "cp1252", "delimiter": ";", "text_column": "body"}
    tuned = official_bert.load_run(run)
    assert (
        tuned.evaluate(path, **options)
        == predictor.evaluate(path, **options)
        == tuned.evaluate(table.assign(review="schön"))
    )
    assert len(tuned.mistakes(path, **options)) == len(tuned.mistakes(table.assign(review="schön")))
    assert tuned.evaluate(path, text_column="body") == tuned.evaluate(path, **options)
    for measure in (tuned.evaluate, tuned.mistakes, predictor.evaluate):
        with pytest.raises(ValueError, match=r"mails\.csv:1: not valid utf-8") as told:
            measure(path, encoding="utf-8", text_column="body")
        assert "--encoding" not in str(told.value) and "--set" not in str(told.value)
        with pytest.raises(ValueError, match=r"^sep: expected an option for reading .*; did you mean delimiter[?]$"):
            measure(path, sep=";")
        with pytest.raises(
            ValueError, match=r"expected a column 'review', found 'body', 'stars' .* text_column= names another"
        ):
            measure(path, encoding="cp1252")
        with pytest.raises(
            ValueError,
            match=r"^labels: expected an option for reading data \(file_format, delimiter, header, encoding, ",
        ):
            measure(path, labels=["a"])


def test_errors_name_keywords_to_python_and_flags_to_commands(run, tmp_path):
    (tmp_path / "a.csv").write_text("text;label\na;1\nb;0\n;1\n")
    train = {"output_dir": tmp_path / "run", "init_checkpoint": run, "max_seq_length": 8}
    for more, told in (
        ({}, "expected training data: train, or one of train.tsv.* in data_dir"),
        ({"train": tmp_path / "a.csv"}, r"^\S+a\.csv:4: column 'text': .* it is empty .*; expected empty_text='skip'$"),
        ({"train": tmp_path / "a.csv", "encoding": "latin-99"}, "^encoding=latin-99: expected an encoding that Python"),
    ):
        with pytest.raises(ValueError, match=told):
            official_bert.fine_tune("classification", **train, **more)
    with pytest.raises(ValueError, match="expected training data: --train_file, or one of"):
        load_task(Config(task="classification")).data.read_train(DataFiles())


def test_a_notebook_shows_the_report_or_else_the_metrics(run, tmp_path):
    (tmp_path / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    (tmp_path / "eval_results.txt").write_text("accuracy = 0.75\nloss = 0.5\npearson = undefined\n")
    tuned = official_bert.load_run(tmp_path)
    assert tuned.metrics["accuracy"] == 0.75 and np.isnan(tuned.metrics["pearson"])
    assert "<tr><td>accuracy</td><td>75.00 %</td></tr>" in tuned._repr_html_()
    (tmp_path / "report.html").write_text('<p title="x">report</p>')
    assert 'srcdoc="&lt;p title=&quot;x&quot;&gt;report' in tuned._repr_html_() and " sandbox " in tuned._repr_html_()
    (tmp_path / "eval_results.txt").write_text("accuracy\n")
    with pytest.raises(ValueError, match=r"eval_results\.txt:1: expected name = number, got 'accuracy'"):
        official_bert.load_run(tmp_path)
    with pytest.raises(ValueError, match="nowhere: expected the output folder of a training run"):
        official_bert.load_run("nowhere")


@pytest.mark.slow
def test_an_exported_model_knows_the_columns_and_the_labels_and_is_not_measured(run, predictor, table, tmp_path):
    task, model = restore_for_inference(str(run))
    export.export(
        make_served_model(task, model, ServingOptions()),
        task.config,
        export.ExportOptions(output=str(tmp_path / "model"), batch_sizes=()),
    )
    exported = official_bert.Predictor(tmp_path / "model")
    wanted, found = predictor(table), exported(table)
    assert list(found.columns) == list(wanted.columns) and list(found["label"]) == list(wanted["label"])
    with pytest.raises(ValueError, match="an exported model has no task to evaluate; evaluate the run"):
        exported.evaluate(table)
