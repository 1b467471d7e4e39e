"""The way in from Python: a tokenizer, an encoder, a model and answers from whatever a path holds."""

import json
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from made_checkpoints import WORDS, stored_small

import official_bert
from official_bert.models.interchange import formats
from official_bert.serving.loading import exported_folder
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import restore_for_inference
from official_bert.text.tokenization import FullTokenizer

pytestmark = pytest.mark.usefixtures("eager_predictors")

FORMATS = ["tf1", "hugging_face", "ours", "keras_hub"]


def small(head, **changes):
    """Returns a small model of one layer, as a reader gives it."""
    return stored_small(head, num_hidden_layers=1, **changes)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Gives the folder of a small model with a head in a format; made once."""
    root, folders = tmp_path_factory.mktemp("checkpoints"), {}

    def write(name, head, **changes):
        key = (name, head, *changes)
        if key not in folders:
            folders[key] = str(root / f"{len(folders)}")
            formats.write(small(head, **changes), name, folders[key])
        return folders[key]

    return write


@pytest.fixture(scope="module")
def exported(written, tmp_path_factory):
    """A fill-mask model, exported."""
    folder = str(tmp_path_factory.mktemp("models") / "blanks")
    told: list[str] = []
    made = official_bert.export(written("ours", "pretraining"), folder, batch_sizes=(), report=told.append)
    assert made == [f"{folder}/text/1", f"{folder}/ids/1"] and told[0].startswith(f"{folder}/text/1: ")
    return folder


@pytest.fixture(scope="module")
def loaded(exported):
    """This model, loaded."""
    return official_bert.Predictor(exported)


def test_a_predictor_says_what_it_is_and_completes_to_what_people_use(written, exported, loaded):
    published = official_bert.Predictor(written("ours", "pretraining"))
    assert repr(loaded) == f"<Predictor of {exported}: pretraining; text -> {', '.join(published.outputs)}>"
    assert repr(published) == repr(loaded).replace(exported, published.path)
    classifier = official_bert.Predictor(written("hugging_face", "classifier"))
    assert f"labels {', '.join(classifier.labels)}; text -> label" in repr(classifier) and classifier.labels
    assert {"config", "embed", "evaluate", "labels", "rank"} <= {*dir(published)}
    assert all(hasattr(published, name) and not name.startswith("_") for name in dir(published))


def test_a_published_folder_and_exports_of_known_and_unknown_tasks_answer_alike(written, exported, loaded, tmp_path):
    stranger = tmp_path / "stranger"
    shutil.copytree(exported, stranger)
    for config in stranger.glob("*/1/assets/config.yaml"):
        config.write_text(config.read_text().replace("task: pretraining", "task: my_project.blanks"))
    texts = ["a [MASK] c", "[MASK] b [MASK]", "c"]
    published, strangers = (official_bert.Predictor(path) for path in (written("ours", "pretraining"), stranger))
    answers = [predictor(texts) for predictor in (published, loaded, strangers)]
    for answer, *others in zip(*answers):
        for other in others:
            assert other.keys() == answer.keys() and other["tokens"] == answer["tokens"]
            assert [len(row) for row in other["probabilities"]] == [len(row) for row in answer["probabilities"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"formats": "onnx"}, "^formats: no such keyword; did you mean format[?]$"),
        ({"format": "onyx"}, "^format: expected one or more of saved_model, "),
        ({"vectors": "int8", "head": "embeddings"}, "^calibration_file: expected with vectors=int8 and format="),
        ({"format": "openvino_int8"}, "^calibration_file: expected with vectors=int8 and format=onnx_int8 or open"),
        ({"calibration_file": "texts.csv"}, "^calibration_file: expected with vectors=int8"),
        ({"version": 1}, "version 1 exists; give version a higher one"),
        ({"quantize": True}, "^quantize: expected one of "),
        ({"top_k": "x"}, "^top_k: expected int"),
    ],
)
def test_errors_of_an_export_name_keywords(exported, written, options, message):
    with pytest.raises(ValueError, match=message):
        official_bert.export(written("ours", "pretraining"), exported, **options)


def test_errors_of_a_predictor_name_keywords(exported):
    with pytest.raises(ValueError, match="^vocab_file, do_lower_case: .* is an exported model"):
        official_bert.Predictor(exported, do_lower_case=True)
    with pytest.raises(ValueError, match="^head=embeddings: expected a model exported with it"):
        official_bert.Predictor(exported, head="embeddings")


def test_importing_it_imports_nothing_heavy():
    code = (
        "import sys, official_bert; assert 'Predictor' in dir(official_bert);"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'tensorflow', 'keras', 'numpy', 'absl', 'yaml'}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'load_tokeniser'"):
        official_bert.load_tokeniser  # noqa: B018


@pytest.mark.parametrize("name", FORMATS)
def test_the_tokenizer_of_every_format(written, name):
    tokenizer = official_bert.load_tokenizer(written(name, ""))
    assert list(tokenizer.vocab) == WORDS and tokenizer.tokenize("a b") == ["a", "b"]
    # The model was made with text as it is; TF 1 has no place for that, and a vocabulary without capitals is taken to
    # be lower-cased.
    assert tokenizer.do_lower_case is (name == "tf1")
    assert official_bert.load_tokenizer(written(name, ""), do_lower_case=True).tokenize("A") == ["a"]


def test_the_tokenizer_of_a_file_of_an_exported_model_and_of_tokenizer_json(golden, exported, written, tmp_path):
    assert official_bert.load_tokenizer(golden / "vocab_uncased.txt").do_lower_case
    assert not official_bert.load_tokenizer(golden / "vocab_cased.txt").do_lower_case
    assert (
        list(official_bert.load_tokenizer(exported).vocab) == WORDS
        and not official_bert.load_tokenizer(exported).do_lower_case
    )
    folder = tmp_path / "fast"
    shutil.copytree(written("hugging_face", ""), folder)
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {word: index for index, word in enumerate(WORDS)}}})
    )
    assert list(official_bert.load_tokenizer(folder).vocab) == WORDS
    assert (
        official_bert.Predictor(folder)("a b")["embedding"]
        == official_bert.Predictor(written("hugging_face", ""))("a b")["embedding"]
    )
    with pytest.raises(ValueError, match="no vocabulary found beside it"):
        official_bert.load_tokenizer(golden / "tf1_bert")


def test_texts_are_encoded_as_the_model_wants_them(golden):
    tokenizer = FullTokenizer(str(golden / "vocab_uncased.txt"))
    found = tokenizer.encode(["the the the", "the"], ["the", ""], max_seq_length=6)
    the, cls, sep = (tokenizer.vocab[token] for token in ("the", "[CLS]", "[SEP]"))
    assert found["input_ids"].tolist() == [[cls, the, the, sep, the, sep], [cls, the, sep, 0, 0, 0]]
    assert found["input_mask"].tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert found["segment_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0] * 6]
    assert tokenizer.encode([])["input_ids"].shape == (0, 0)
    for wrong in ("the", ["the"]):
        with pytest.raises(ValueError, match="expected a list of texts"):
            tokenizer.encode(wrong, ["a", "b"])


def test_a_tokenizer_is_called_and_decodes_as_in_transformers(golden):
    tokenizer = FullTokenizer(str(golden / "vocab_uncased.txt"))
    the, other, cls, sep = (tokenizer.vocab[token] for token in ("the", "and", "[CLS]", "[SEP]"))
    assert tokenizer.encode("The and") == [cls, the, other, sep]
    assert tokenizer.encode("the", "and") == [cls, the, sep, other, sep]
    single, several = tokenizer("the and"), tokenizer(["the and", "the"], max_seq_length=4)
    assert single["input_ids"].tolist() == [[cls, the, other, sep]] and single["input_mask"].tolist() == [[1] * 4]
    assert several["input_ids"].tolist() == [[cls, the, other, sep], [cls, the, sep, 0]]
    assert tokenizer("the", "and")["segment_ids"].tolist() == [[0, 0, 0, 1, 1]]
    assert tokenizer.decode([cls, the, other, sep]) == "[CLS] the and [SEP]"
    text = "the neighbour's copper, rained!"
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=True) == text
    with pytest.raises(ValueError, match="expected the ids of one text, got several rows"):
        tokenizer.decode(tokenizer(text)["input_ids"])
    with pytest.raises(ValueError, match="as many second texts as text_pairs"):
        tokenizer([("the", "and")])


def test_a_model_gets_a_new_head(written):
    path = written("hugging_face", "pretraining")
    with pytest.raises(ValueError, match="^num_labels: expected a number of labels, or 0 .*, got -1$"):
        official_bert.load_model(path, num_labels=-1)
    model = official_bert.load_model(path, num_labels=5)
    rows = official_bert.load_tokenizer(path)("a b")
    assert model(rows)["logits"].shape == (1, 5)
    expected = official_bert.load_encoder(path)(rows)["pooled_output"]
    np.testing.assert_array_equal(model.encoder(rows)["pooled_output"], expected)


def test_a_predictor_is_asked_for_a_task(written, exported):
    path = written("hugging_face", "pretraining")
    assert "tokens" in official_bert.Predictor(path, task="fill_mask").outputs
    assert official_bert.Predictor(path, task="embeddings").outputs[0] == "embedding"
    assert "label" in official_bert.Predictor(written("hugging_face", "classifier"), task="SST-2").outputs
    for task, message in (
        ("ner", "^model=.*: not a model for task=ner; it gives"),
        ("NER", "^task: expected one of .* did you mean ner"),
        ("sentiment-analysis", "^task: expected one of .* did you mean classification"),
    ):
        for model in (path, exported):
            with pytest.raises(ValueError, match=message):
                official_bert.Predictor(model, task=task)


def test_the_encoder_gives_what_2018_gave(golden):
    inputs, wanted = dict(np.load(golden / "tf1_bert/inputs.npz")), np.load(golden / "tf1_bert/outputs.npz")
    found = official_bert.load_encoder(golden / "tf1_bert", return_layers=True)(
        {name: inputs[name] for name in ("input_ids", "input_mask", "segment_ids")}
    )
    seen = inputs["input_mask"].astype(bool)
    np.testing.assert_allclose(found["sequence_output"].numpy()[seen], wanted["sequence_output"][seen], atol=1e-5)
    np.testing.assert_allclose(found["pooled_output"], wanted["pooled_output"], atol=1e-5)
    np.testing.assert_array_equal(found["layer_outputs"][-1], found["sequence_output"])


@pytest.mark.parametrize("head", ["", "pretraining", "classifier", "choice", "tagger", "span"])
def test_a_model_has_the_heads_of_its_checkpoint(written, head):
    kind = {
        "": "BertEncoder",
        "pretraining": "Pretrainer",
        "classifier": "Classifier",
        "choice": "ChoiceClassifier",
        "tagger": "Tagger",
        "span": "SpanPredictor",
    }[head]
    model = official_bert.load_model(written("hugging_face", head))
    assert type(model).__name__ == kind
    for weight, value in small(head).weights.items():
        if weight in (variables := formats.weights_by_name(model)) and not (
            weight.startswith("pooler") and head in ("tagger", "span")
        ):
            np.testing.assert_array_equal(variables[weight].numpy(), value)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_fills_blanks(written, softmax, name):
    folder = written(name, "pretraining")
    answer = official_bert.Predictor(folder, top_k=2)("a [MASK] c")
    model = formats.make_model(formats.read(folder))
    rows = {
        "input_ids": [[2, 5, 4, 7, 3]],
        "input_mask": [[1] * 5],
        "segment_ids": [[0] * 5],
        "masked_lm_positions": [[2]],
    }
    expected = softmax(model({key: tf.constant(value) for key, value in rows.items()})["mlm_logits"].numpy()[0, 0])
    best = np.argsort(-expected)[:2]
    assert answer["tokens"] == [[WORDS[index] for index in best]]
    np.testing.assert_allclose(answer["probabilities"], [expected[best]], atol=1e-5)


@pytest.mark.parametrize("name", FORMATS)
def test_every_encoder_gives_embeddings(written, name):
    folder = written(name, "")
    found = official_bert.Predictor(folder)(["a b c", "d"])
    encoder = official_bert.load_encoder(folder)
    inputs = official_bert.load_tokenizer(folder).encode(["a b c", "d"])
    rows = encoder(inputs)["sequence_output"].numpy()
    for row, mask, answer in zip(rows, inputs["input_mask"], found):
        np.testing.assert_allclose(answer["embedding"], row[mask.astype(bool)].mean(axis=0), atol=1e-5)
    first = official_bert.Predictor(written(name, "pretraining"), head="embeddings", pooling="cls")("a")
    assert len(first["embedding"]) == 8


def test_an_encoder_alone_is_not_asked_for_words(written, golden, tmp_path):
    task, model = restore_for_inference(written("ours", ""))  # once converted, it is the folder of a pre-training run
    with pytest.raises(ValueError, match="an encoder without a head: expected --head=embeddings"):
        make_served_model(task, model, ServingOptions())
    with pytest.raises(ValueError, match="no vocabulary found beside it; --vocab_file gives it"):
        restore_for_inference(str(golden / "tf1_bert"))
    with pytest.raises(
        ValueError, match="nowhere: expected the output folder of a training run or a checkpoint, got no such"
    ):
        official_bert.Predictor("nowhere")
    (tmp_path / "notes.md").write_text("no model")
    with pytest.raises(ValueError, match=r"no checkpoint found there: .* got notes.md"):
        official_bert.load_model(tmp_path)
    with pytest.raises(ValueError, match="top_kk: expected one of head, max_seq_length, top_k"):
        official_bert.Predictor(written("ours", "pretraining"), top_kk=1)


def test_added_tokens_of_a_folder_are_told(tmp_path, caplog):
    formats.write(small(""), "hugging_face", str(tmp_path / "added"))
    (tmp_path / "added/added_tokens.json").write_text(json.dumps({"[E1]": 20, "a": 5, "[MASK]": 4}))
    restore_for_inference(str(tmp_path / "added"))
    assert "its added tokens ([E1]) are split into pieces here" in caplog.text


def pooling_of(path, **choices):
    return make_served_model(*restore_for_inference(str(path)), ServingOptions(head="embeddings", **choices)).pooling


def test_vectors_are_pooled_as_the_folder_of_sentence_transformers_says(tmp_path, caplog):
    stored = formats.dataclasses.replace(small(""), pooling="cls")
    formats.write(stored, "hugging_face", str(tmp_path / "theirs"))
    no_pooler = {name: weight for name, weight in stored.weights.items() if not name.startswith("pooler/")}
    formats.write(
        formats.dataclasses.replace(formats.read(str(tmp_path / "theirs")), weights=no_pooler),
        "ours",
        str(tmp_path / "ours"),
    )
    assert (
        pooling_of(tmp_path / "theirs")
        == pooling_of(tmp_path / "ours")
        == formats.read(str(tmp_path / "ours")).pooling
        == "cls"
    )
    assert pooling_of(tmp_path / "theirs", pooling="mean") == "mean" and "not supported" not in caplog.text
    (tmp_path / "theirs/1_Pooling/config.json").write_text(
        json.dumps({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True})
    )
    assert pooling_of(tmp_path / "theirs") == ("cls", "max") and "not supported" not in caplog.text
    (tmp_path / "theirs/modules.json").write_text('{"idx": 0}')
    with pytest.raises(ValueError, match="modules.json: expected a list of modules"):
        formats.read(str(tmp_path / "theirs"))


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"head": "embedding"}, r"^head: expected one of \['', 'embeddings'\], got 'embedding'"),
        ({"head": "embeddings", "pooling": "median"}, "^pooling: expected 'cls' or 'mean' .*, got 'median'"),
        ({"threshold": 7}, "threshold: expected a probability from 0 to 1, got 7"),
        ({"top_k": 0}, "^top_k: expected at least 1, got 0"),
    ],
)
def test_options_with_wrong_values_are_refused(choices, message):
    with pytest.raises(ValueError, match=message):
        official_bert.Predictor("nowhere", **choices)


def test_a_run_that_lacks_weights_is_refused_in_a_line(written, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(written("ours", ""), folder)
    (folder / "config.yaml").write_text(
        (folder / "config.yaml").read_text().replace("task: pretraining", "task: squad")
    )
    with pytest.raises(
        ValueError, match="expected every weight of task squad, missing: span/output_bias, span/output_weights"
    ):
        official_bert.load_model(folder)
    data = next(folder.glob("ckpt*.data*"))
    data.write_bytes(data.read_bytes()[:100])
    (folder / "config.yaml").write_text(
        (folder / "config.yaml").read_text().replace("task: squad", "task: pretraining")
    )
    with pytest.raises(ValueError, match="damaged checkpoint: "):
        official_bert.load_model(folder)


def test_a_classifier_answers_with_its_labels_for_one_text_or_two(tmp_path):
    stored = small("classifier")
    formats.write(
        formats.dataclasses.replace(stored, labels=["bad", "fair", "good"]), "hugging_face", str(tmp_path / "one")
    )
    one = official_bert.Predictor(tmp_path / "one")
    answers = one(["a b", "c"])
    for answer in answers:
        assert list(answer["probabilities"]) == ["bad", "fair", "good"]
        assert answer["label"] == max(answer["probabilities"], key=answer["probabilities"].get)
    assert one("c")["logits"] == pytest.approx(answers[1]["logits"], abs=1e-5)
    two = official_bert.Predictor(tmp_path / "one", pairs=True)
    assert two.inputs == ("text", "text_pair")
    assert two(("a", "b")) == two({"text": "a", "text_pair": "b"}) == two([["a", "b"]])[0]
    model = official_bert.load_model(tmp_path / "one")
    logits = model(
        {
            key: tf.constant(value)
            for key, value in official_bert.load_tokenizer(tmp_path / "one").encode(["a"], ["b"]).items()
        }
    )
    np.testing.assert_allclose(two(("a", "b"))["logits"], logits["logits"][0], atol=1e-5)


def test_choices_of_different_numbers_are_answered_together(written):
    predictor = official_bert.Predictor(written("ours", "choice"))
    texts = [("a", ["b", "c"]), ("b", ["c", "d", "e"]), {"text": "a", "choices": ["d", "b"]}]
    answers = predictor(texts)
    assert [len(answer["probabilities"]) for answer in answers] == [2, 3, 2]
    assert answers[1] == predictor(texts[1])
    with pytest.raises(ValueError, match=r"row 2: column 'choices': expected a list of texts, got \[\]"):
        predictor([texts[0], ("a", [])])


def test_answers_hold_no_padding_of_the_batch(written, caplog):
    predictor = official_bert.Predictor(written("ours", "pretraining"))
    blanks = predictor(["[MASK] a [MASK]", "a", "b [MASK]"])
    (told,) = [record.getMessage() for record in caplog.records if "empty" in record.getMessage()]
    assert told.startswith("1 of 3 answers are empty: nothing to fill: the text has no [MASK]")
    caplog.clear()
    predictor(["b [MASK]"])
    assert not caplog.records
    assert (
        [len(answer["tokens"]) for answer in blanks] == [len(answer["probabilities"]) for answer in blanks] == [2, 0, 1]
    )
    tagger = official_bert.Predictor(written("ours", "tagger"))
    answers = tagger(["a b c d e f", "", "a"])
    assert answers[1] == {"entities": [], "types": [], "starts": [], "ends": [], "scores": [], "truncated": False}
    for text, answer in zip(["a b c d e f", "", "a"], answers):
        assert [text[start:end] for start, end in zip(answer["starts"], answer["ends"])] == answer["entities"]


def test_what_is_no_text_is_named(exported, loaded):
    assert loaded([]) == []
    for wrong, message in (
        (["a", None], "row 2: expected text, got None"),
        ([3.5], "row 1: expected text, got 3.5"),
        (["a", ("a", "b")], "row 2: expected text, got 2 values"),
        ([{"txt": "a"}], "row 1: expected columns 'text', found 'txt'"),
        ([{"text": float("nan")}], "row 1: column 'text': expected text, got nan"),
        (None, "expected a list of texts"),
        (["a", "b\ud800"], "row 2: column 'text': expected text, got .*, with half a character .* at place 1"),
    ):
        with pytest.raises(ValueError, match=message):
            loaded(wrong)
    with pytest.raises(ValueError, match="batch_size: expected at least 1, got -1"):
        loaded(["a"], batch_size=-1)
    with pytest.raises(ValueError, match="is an exported model, which has its own"):
        official_bert.Predictor(exported, vocab_file="vocab.txt")


@pytest.mark.parametrize("choices", [{"head": "embeddings"}, {"max_seq_length": 16}, {"top_k": 1}])
def test_options_that_an_exported_model_does_not_follow_are_refused(exported, choices):
    with pytest.raises(ValueError, match=f"^{next(iter(choices))}.* an exported model, whose options are fixed"):
        official_bert.Predictor(exported, **choices)


def test_a_run_in_whose_folder_a_model_was_exported_is_still_the_run(written, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(written("ours", "pretraining"), run)
    (run / "text" / "1").mkdir(parents=True)
    (run / "text" / "1" / "saved_model.pb").write_bytes(b"of an earlier checkpoint")
    assert exported_folder(str(run)) is None
    assert exported_folder(str(run / "text")) == str(run / "text" / "1")


def test_a_model_exported_without_warm_up_is_batched_nevertheless(exported):
    folder = pathlib.Path(exported) / "text" / "1"
    assert not (folder / "assets.extra").exists()
    assert (folder / "batching_params.pbtxt").read_text().endswith("max_execution_batch_size { value: 32 }\n")
