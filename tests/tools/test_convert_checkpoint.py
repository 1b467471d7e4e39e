"""The command: the golden model to each format and back, its messages, and refusals that leave no files."""

import dataclasses
import json
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from commands import imported_tool, run_here
from made_checkpoints import SMALL, stored_small

from official_bert.config import Config, load_config, save_config
from official_bert.model_config import OF_2018
from official_bert.models.interchange import formats
from official_bert.runs.configuration import run_config

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tool():
    with imported_tool("convert_checkpoint") as module:
        yield module


@pytest.fixture
def convert(tool, capsys):
    """Runs the command in this process; returns its output."""

    def run(**values):
        flags.FLAGS.unparse_flags()
        for name in tool.own_flags:
            flags.FLAGS[name].unparse()
        flags.FLAGS(["convert_checkpoint.py", *(f"--{name}={value}" for name, value in values.items())])
        tool.main([])
        return capsys.readouterr().out

    return run


@pytest.fixture
def uncompared(tool, monkeypatch):
    """Leaves the comparison of the models, which takes most of a command's time, to the tests of formats."""
    monkeypatch.setattr(tool, "largest_differences", lambda *_: {"nothing": 0.0})


@pytest.fixture
def google(golden, tmp_path):
    """Makes a checkpoint folder in Google's published layout."""
    shutil.copytree(golden / "tf1_bert", tmp_path / "google")
    shutil.copy(golden / "vocab_uncased.txt", tmp_path / "google/vocab.txt")
    return tmp_path / "google"


# The files of each form are the subject of models/interchange/test_formats.py.
@pytest.mark.parametrize(
    "form", ["hugging_face", *(pytest.param(form, marks=pytest.mark.slow) for form in ("keras_hub", "ours"))]
)
def test_there_and_back_again(convert, google, tmp_path, form):
    said = convert(**{"from": "tf1", "to": form, "input": google / "bert_model.ckpt", "output": tmp_path / "there"})
    assert "found: TF 1 checkpoint" in said and "62 weights; largest difference" in said
    assert "largest difference of mlm_logits" in said and "largest difference of pooled_output" in said
    said = convert(**{"from": form, "to": "tf1", "input": tmp_path / "there", "output": tmp_path / "back"})
    assert (tmp_path / "back/vocab.txt").read_bytes() == (google / "vocab.txt").read_bytes()
    before, after = (json.loads((folder / "bert_config.json").read_text()) for folder in (google, tmp_path / "back"))
    # How weights were drawn is nothing that a keras-hub backbone says.
    assert after == before | ({"initializer_range": 0.02} if form == "keras_hub" else {})
    one, other = (tf.train.load_checkpoint(str(folder / "bert_model.ckpt")) for folder in (google, tmp_path / "back"))
    assert one.get_variable_to_shape_map() == other.get_variable_to_shape_map()
    for name in one.get_variable_to_shape_map():
        np.testing.assert_array_equal(one.get_tensor(name), other.get_tensor(name))


@pytest.mark.usefixtures("uncompared")
def test_case_is_told_from_the_vocabulary(convert, google, golden, tmp_path):
    def config(name):
        return json.loads((tmp_path / name / "tokenizer_config.json").read_text())

    convert(to="hugging_face", input=google, output=tmp_path / "uncased")
    assert config("uncased")["do_lower_case"] is True
    with pytest.raises(
        ValueError, match=r"vocab_cased.txt:\d+: expected '\[', as in the vocabulary of TF 1 checkpoint .*, got 'A'"
    ):
        convert(to="hugging_face", input=google, output=tmp_path / "other", vocab_file=golden / "vocab_cased.txt")
    bare = shutil.copytree(google, tmp_path / "bare", ignore=shutil.ignore_patterns("vocab.txt"))
    convert(to="hugging_face", input=bare, output=tmp_path / "cased", vocab_file=golden / "vocab_cased.txt")
    assert config("cased")["do_lower_case"] is False
    convert(to="hugging_face", input=google, output=tmp_path / "said", do_lower_case="false")
    assert config("said")["do_lower_case"] is False


@pytest.mark.usefixtures("uncompared")
def test_a_gelu_of_mistaken_origin_is_overruled(convert, google, tmp_path):
    convert(to="hugging_face", input=google, output=tmp_path / "there")
    values = json.loads((tmp_path / "there/config.json").read_text())
    (tmp_path / "there/config.json").write_text(json.dumps(values | {"hidden_act": "gelu"}))
    with pytest.raises(ValueError, match="the 2018 code has no hidden_act 'gelu_erf'.*--hidden_act"):
        convert(to="tf1", input=tmp_path / "there", output=tmp_path / "back")
    assert not (tmp_path / "back").exists()
    convert(to="tf1", input=tmp_path / "there", output=tmp_path / "back", hidden_act="gelu")
    assert json.loads((tmp_path / "back/bert_config.json").read_text())["hidden_act"] == "gelu"


def test_notes_do_not_contradict_the_configuration_that_is_given(tool, google, tmp_path):
    formats.write(stored_small("", hidden_act="gelu_erf"), "hugging_face", str(tmp_path / "theirs"))
    given = tmp_path / "own.json"
    given.write_text(json.dumps({"hidden_size": 16, "num_attention_heads": 2, "hidden_act": "gelu"}))
    for more, said in (([], 1), ([f"--bert_config_file={given}"], 0)):
        flags.FLAGS.unparse_flags()
        flags.FLAGS(
            ["convert_checkpoint.py", "--to=ours", f"--input={tmp_path}/theirs", f"--output={tmp_path}/out", *more]
        )
        settings = tool.from_flags(tool.Settings, flags.FLAGS)
        assert sum("erf form" in note for note in tool.read_source(formats, settings, "").notes) == said


def test_what_the_json_of_2018_has_no_place_for_stays_beside_one(convert, tmp_path):
    stored = stored_small("", attention="left_to_right", layer_norm_epsilon=1e-5)
    formats.write(stored, "ours", str(tmp_path / "run"))
    given = tmp_path / "own.json"
    given.write_text(json.dumps({key: getattr(SMALL, key) for key in OF_2018}))
    with pytest.raises(ValueError, match="Hugging Face's BERT attends in both directions, the model left_to_right"):
        convert(to="hugging_face", input=tmp_path / "run", output=tmp_path / "theirs", bert_config_file=given)


def test_weights_are_left_behind_only_where_told(convert, google, tmp_path):
    said = convert(to="hugging_face", input=google, output=tmp_path / "out", leave_out="cls/.*")
    assert "55 weights" in said
    assert json.loads((tmp_path / "out/config.json").read_text())["architectures"] == ["BertModel"]
    with pytest.raises(ValueError, match="missing: bert/embeddings/position_embeddings"):
        convert(to="hugging_face", input=google, output=tmp_path / "none", leave_out=".*position_embeddings")
    with pytest.raises(ValueError, match="not a regular expression"):
        convert(to="hugging_face", input=google, output=tmp_path / "none", leave_out="(")


@pytest.mark.usefixtures("uncompared")
def test_thresholds_that_a_format_cannot_hold_are_told(convert, tmp_path):
    stored = dataclasses.replace(
        stored_small("classifier"), labels=("a", "b", "c"), kind="multi_label", threshold=[0.9, 0.2, 0.4]
    )
    formats.write(stored, "ours", str(tmp_path / "run"))
    said = convert(to="hugging_face", input=tmp_path / "run", output=tmp_path / "there")
    assert "not written, because this format has no place for the threshold of the labels: [0.9, 0.2, 0.4]" in said
    assert "left out" not in convert(to="ours", input=tmp_path / "run", output=tmp_path / "again")


@pytest.mark.usefixtures("uncompared")
def test_the_sentence_task_stays_with_our_checkpoints_and_others_say_that_they_cannot_hold_it(convert, tmp_path):
    formats.write(dataclasses.replace(stored_small("pretraining"), sentence_task="sop"), "ours", str(tmp_path / "run"))
    assert "sentence task" not in convert(to="ours", input=tmp_path / "run", output=tmp_path / "again")
    assert formats.read(str(tmp_path / "again")).sentence_task == "sop"
    found = run_config.checkpoint_values(str(tmp_path / "again"), pretraining=True).values
    assert found["options"] == {"sentence_task": "sop"}
    told = []
    assert run_config.with_objective_of(Config(), str(tmp_path / "again"), told.append).options == {
        "sentence_task": "sop"
    }
    assert told[0].endswith("its sentence task, sop, is evaluated")
    said = convert(to="hugging_face", input=tmp_path / "run", output=tmp_path / "there")
    assert "not written, because this format has no place for the sentence task: sop" in said


@pytest.mark.usefixtures("uncompared")
def test_casing_and_kind_that_tf1_cannot_hold_are_told(convert, tmp_path):
    # cased, without capitals
    stored = dataclasses.replace(stored_small("classifier"), labels=("a", "b", "c"), kind="multi_label")
    formats.write(stored, "hugging_face", str(tmp_path / "theirs"))
    said = convert(to="tf1", input=tmp_path / "theirs", output=tmp_path / "there")
    assert (
        "no place for the kind of answer: several labels" in said and "no place for the casing: not lower-cased" in said
    )
    said = convert(to="tf1", input=tmp_path / "theirs", output=tmp_path / "toy_cased_L-2")
    assert "no place for the kind" in said and "for the casing" not in said
    with pytest.raises(ValueError, match="--labels: expected 3 different names, .*, got a, , b"):
        convert(to="ours", input=tmp_path / "theirs", output=tmp_path / "named", labels="a,,b")


@pytest.mark.parametrize(
    ("lower_case", "name"), [(False, "chinese_L-12_H-768_A-12"), (False, "toy_uncased"), (True, "toy_cased")]
)
def test_a_name_that_tells_another_casing_is_refused(convert, tmp_path, lower_case, name):
    formats.write(
        dataclasses.replace(stored_small("classifier"), do_lower_case=lower_case),
        "hugging_face",
        str(tmp_path / "theirs"),
    )
    with pytest.raises(
        ValueError, match=f"{name}: its name or the vocabulary says that text is .*lower-cased, and TF 1"
    ):
        convert(to="tf1", input=tmp_path / "theirs", output=tmp_path / name)
    assert os.listdir(tmp_path) == ["theirs"]


@pytest.mark.slow
def test_a_preset_is_found_by_its_file(convert, tmp_path):
    formats.write(stored_small(""), "keras_hub", str(tmp_path / "preset"))
    said = convert(to="ours", input=tmp_path / "preset/config.json", output=tmp_path / "run")
    assert "largest difference of pooled_output" in said and (tmp_path / "run/config.yaml").is_file()


@pytest.mark.usefixtures("uncompared")
def test_options_of_a_run_that_change_its_answers_are_told(convert, tmp_path):
    formats.write(
        dataclasses.replace(stored_small("classifier"), labels=("a", "b", "c")), "ours", str(tmp_path / "run")
    )
    path, options = tmp_path / "run/config.yaml", {"truncate": "windows", "doc_stride": 4, "max_seq_length": 8}
    config = load_config(str(path))
    save_config(dataclasses.replace(config, options=config.options | options), str(path))
    said = convert(to="hugging_face", input=tmp_path / "run", output=tmp_path / "there")
    assert "options of the run that change its answers: max_seq_length: 8, truncate: windows, doc_stride: 4\n" in said


def with_options(path, **options):
    config = load_config(str(path / "config.yaml"))
    save_config(dataclasses.replace(config, options=config.options | options), str(path / "config.yaml"))


ENTITIES, PARTS_OF_SPEECH = ("O", "B-X", "I-X", "B-Y", "I-Y"), ("NOUN", "VERB", "ADP", "DET", "X")


@pytest.mark.slow
@pytest.mark.usefixtures("uncompared")
@pytest.mark.parametrize(
    ("form", "labels", "options", "told"),
    [
        ("hugging_face", ENTITIES, {"constrain": True, "scheme": "plain"}, "scheme: plain, constrain: True"),
        ("ours", ENTITIES, {"constrain": True, "scheme": "plain"}, "scheme: plain, constrain: True"),
        ("hugging_face", PARTS_OF_SPEECH, {}, "scheme: plain"),  # other programs join equal tags
        ("ours", PARTS_OF_SPEECH, {}, ""),
        ("hugging_face", ENTITIES, {}, ""),
    ],
)
def test_how_a_run_decodes_its_tags_is_told(convert, tmp_path, form, labels, options, told):
    formats.write(dataclasses.replace(stored_small("tagger"), labels=labels), "ours", str(tmp_path / "run"))
    with_options(tmp_path / "run", **options)
    said = convert(to=form, input=tmp_path / "run", output=tmp_path / "there")
    assert (
        (f"options of the run that change its answers: {told}\n" in said) if told else "options of the run" not in said
    )


@pytest.mark.usefixtures("uncompared")
@pytest.mark.parametrize("form", ["hugging_face", "ours"])
def test_what_was_tuned_beside_the_converted_weights_is_told(convert, tmp_path, form):
    formats.write(stored_small("span"), "ours", str(tmp_path / "run"))
    with_options(tmp_path / "run", version_2_with_negative=True, max_query_length=4, doc_stride=2)
    (tmp_path / "run/best").mkdir()
    for path in (tmp_path / "run").glob("ckpt*"):
        shutil.copy(path, tmp_path / "run/best")
    (tmp_path / "run/best/tuned.json").write_text('{"steps": {"1": {"null_score_diff_threshold": -1.5}}}')
    said = convert(to=form, input=tmp_path / "run/best", output=tmp_path / "there")
    assert "version_2_with_negative: True, null_score_diff_threshold: -1.5\n" in said
    # whose weights these are not
    assert "null_score" not in convert(to=form, input=tmp_path / "run", output=tmp_path / "last")


@pytest.mark.usefixtures("uncompared")
def test_tuned_thresholds_of_labels_are_told(convert, tmp_path):
    stored = dataclasses.replace(
        stored_small("classifier"), labels=("a", "b", "c"), kind="multi_label", threshold="tuned_per_label"
    )
    formats.write(stored, "ours", str(tmp_path / "run"))
    (tmp_path / "run/tuned.json").write_text('{"steps": {"1": {"threshold": [0.3, 0.5, 0.6]}}}')
    said = convert(to="hugging_face", input=tmp_path / "run", output=tmp_path / "there")
    assert "no place for the threshold of the labels: [0.3, 0.5, 0.6]\n" in said
    assert "left out" not in convert(to="ours", input=tmp_path / "run", output=tmp_path / "again")
    assert formats.read(str(tmp_path / "again")).threshold == [0.3, 0.5, 0.6]


def test_models_that_differ_are_not_written(convert, tool, google, tmp_path, monkeypatch):
    from official_bert.models.interchange.projects import hugging_face

    def wrong(model, folder, write=hugging_face.write):
        weights = dict(model.weights)
        weights["pooler/bias"] = weights["pooler/bias"] + 1e-3
        return write(tool.dataclasses.replace(model, weights=weights), folder)

    monkeypatch.setattr(hugging_face, "write", wrong)
    with pytest.raises(ValueError, match="not written: the models differ by .*, more than 1e-05"):
        convert(to="hugging_face", input=google, output=tmp_path / "out")
    assert os.listdir(tmp_path) == ["google"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"from": "hugging_face"}, "expected the format hugging_face, got tf1"),
        ({"input": "nowhere"}, "nowhere: no checkpoint found there"),
        ({"output": "google"}, "google: expected a new or empty folder"),
        ({"vocab_file": "short.txt"}, "the vocabulary has 2 entries, but the table of word embeddings 3000 rows"),
    ],
)
def test_mistakes_leave_nothing(convert, google, tmp_path, values, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=message):
        convert(**({"to": "hugging_face", "input": "google", "output": "out"} | values))
    assert sorted(os.listdir(tmp_path)) == ["google", "short.txt"]


@pytest.mark.slow
@pytest.mark.usefixtures("uncompared")
def test_spare_rows_are_converted_with_a_vocabulary_of_fewer_entries(convert, google, tmp_path):
    """As published models have them: more rows than entries, for a multiple of 8 or 128."""
    vocab = google / "vocab.txt"
    vocab.write_text("".join(vocab.read_text(encoding="utf-8").splitlines(keepends=True)[:-8]), encoding="utf-8")
    for name in ("hugging_face", "keras_hub", "ours", "tf1"):
        assert "8 spare rows of word embeddings are converted too" in convert(
            to=name, input=google, output=tmp_path / name
        )
        again = formats.read(str(tmp_path / name))
        assert len(again.weights["embeddings/word_embeddings"]) == 3000 and len(again.vocab) == 2992, name


def test_a_mistake_is_one_line_and_a_bad_status(golden, tmp_path):
    shutil.copy(golden / "tf1_bert/bert_model.ckpt.index", tmp_path)
    shutil.copy(golden / "tf1_bert/bert_model.ckpt.data-00000-of-00001", tmp_path)
    done = run_here(
        "tools/convert_checkpoint.py", "--to=hugging_face", f"--input={tmp_path}", f"--output={tmp_path}/out"
    )
    assert done.returncode == 1 and "expected a bert_config.json beside it" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
