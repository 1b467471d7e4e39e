"""A task's served model gives the same answers as the same steps in plain Python."""

import dataclasses
import shutil
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from eager_models import eager_function_of
from oracles.answers import answers_of

from official_bert.config import Config, ModelConfig, TokenizerConfig
from official_bert.interface.predictor import Predictor, plain
from official_bert.models.encoder import make_encoder
from official_bert.objectives.tag_chains import CHAIN
from official_bert.serving import bounds, export
from official_bert.serving.loading import function_of, load_exported
from official_bert.serving.precision import policy_of
from official_bert.serving.served_embeddings import ServedEmbeddings, make_served_model
from official_bert.serving.served_model import ServedModel, ServingOptions
from official_bert.serving.task_serving import serving_of
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task
from official_bert.tasks.pretraining.served import ServedFillMask
from official_bert.tasks.squad.served import ServedSpans
from official_bert.tasks.tagging.served import ServedFeatureTagger, ServedTagger
from official_bert.tasks.texts.served import ServedChoice, ServedClassifier, ServedMultiLabel, ServedRegression

SMALL = ModelConfig(
    vocab_size=3000,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=48,
    initializer_range=0.5,
)
TEXTS = [
    {"text": text}
    for text in (
        "The surveyor met Señora Núñez, near Brno.",
        "",
        "Nobody",
        "中国 price e\u0301t",
        "the youngest apprentice borrowed the greenhouse thermometer (while it rained in Brno and St. Anne's parish!)",
    )
]
PAIRS = [row | {"text_pair": other["text"]} for row, other in zip(TEXTS, reversed(TEXTS))]
QUESTIONS = [{"question": "Who met " + row["text"][:12] + "?", "context": " " + row["text"] * 4} for row in TEXTS]
CHOICES = [row | {"choices": ["ran home", "", "borrowed the greenhouse", row["text"][-20:]]} for row in TEXTS]
WORDS = ("the", "youngest", "apprentice", "borrowed", "it", "while", "it", "rained", "in", "brno")
TAGS = {"labels": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), "doc_stride": 8}
CASES = {
    "glue": ({"dataset": "rte", "labels": ["entailment", "not_entailment"]}, PAIRS),
    "glue regression": ({"dataset": "stsb"}, PAIRS),
    "classification several": ({"kind": "multi_label", "labels": ["a", "b", "c"]}, TEXTS),
    "swag": ({}, CHOICES),
    "squad": (
        {"doc_stride": 8, "max_query_length": 12, "version_2_with_negative": True, "null_score_diff_threshold": 1.0},
        QUESTIONS,
    ),
    "ner": (TAGS, TEXTS),
    "ner constrained": (TAGS | {"constrain": True}, TEXTS),
    "ner crf": (TAGS | {"crf": True, "constrain": True}, TEXTS),
    "ner features": (TAGS | {"features": "weighted_sum", "feature_layers": 2, "lstm_size": 8}, TEXTS),
    "ner features crf": (TAGS | {"features": "concat", "feature_layers": 2, "lstm_size": 8, "crf": True}, TEXTS),
}


@pytest.fixture(scope="module")
def make(golden):
    """Returns a case's task and a model whose weights are large enough to make its answers differ."""

    def of(name, **more):
        options, rows = CASES[name]
        layers = options.get("feature_layers", 1)
        config = Config(
            task=name.split()[0],
            model=dataclasses.replace(SMALL, num_hidden_layers=layers),
            tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")),
            options={"max_seq_length": 48, **options, **more},
        )
        task = load_task(config)
        keras.utils.set_random_seed(3)
        model = task.build_model()
        if name.startswith("ner"):
            model.tagger.output_bias.assign([-1.0, 0.0, 0.0, 0.0, 0.0])  # entities are wanted
        rng = np.random.default_rng(0)
        for variable in model.trainable_variables:
            if variable.path.split("/")[-1] in CHAIN:  # scores that begin at 0
                variable.assign(rng.normal(size=variable.shape) * 0.02)
        return task, model, rows

    return of


# Their parts are those of other cases.
SLOW = ("ner", "ner constrained", "ner features", "ner features crf")
# Their graphs are that of `glue`, but for a few operations on its logits.
EAGER = ("glue regression", "classification several")


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def made_case(make, request):
    """Returns a case's task, model and rows, its served model, and the functions that answer texts and rows of ids;
    traced once for several tests.
    """
    task, model, rows = make(request.param)
    served = make_served_model(task, model, ServingOptions())
    if request.param in EAGER:
        return task, model, rows, served, eager_function_of(served), served.answer_ids
    with mock.patch.object(bounds, "GROUP_COST", 0):
        return task, model, rows, served, function_of(served), tf.function(served.answer_ids, autograph=False)


@pytest.fixture
def case(made_case, monkeypatch):
    """Returns a made case, whose few short rows are computed in several groups."""
    monkeypatch.setattr(bounds, "GROUP_COST", 0)
    return made_case


def check_equal(found, wanted):
    """Compares two answers; the graph's lists are padded."""
    shared = [key for key in wanted if key in found]
    assert shared
    for key in shared:
        value = wanted[key]
        if isinstance(value, list) and key in ("entities", "types", "starts", "ends", "scores", "labels"):
            assert not any(found[key][len(value) :]), key
            found[key] = found[key][: len(value)]
        if isinstance(value, float) or (isinstance(value, list) and value and isinstance(value[0], float)):
            np.testing.assert_allclose(found[key], value, atol=1e-4, err_msg=key)
        else:
            assert found[key] == value, key


def test_the_graph_answers_as_the_steps_in_plain_python_do(case):
    task, model, rows, served, answer, _ = case
    assert isinstance(served, serving_of(task, "").classes) and sorted(answer.outputs) == sorted(served.outputs)
    batch = answer(**{name: [row[name] for row in rows] for name in rows[0]})
    wanted = answers_of(task, model, rows)
    for index, one in enumerate(wanted):
        check_equal({name: plain(value[index]) for name, value in batch.items()}, one)
    if "entities" in wanted[0]:
        assert sum(len(answer["entities"]) for answer in wanted) > 5
    if "answer" in wanted[0]:
        assert {bool(answer["answer"]) for answer in wanted} == {False, True}


def test_rows_of_ids_have_the_logits_of_the_model_itself_which_computes_padding(case):
    _, model, _, served, _, answer = case
    rng = np.random.default_rng(5)
    choices = [2] * (len(served.ids_inputs["input_ids"].shape) - 2)
    mask = np.zeros((6, *choices, 40), np.int32)
    for length, row in zip((40, 3, 17, 1, 30, 16, 5, 40, 39, 2, 8, 9), mask.reshape(-1, 40)):
        row[:length] = 1
    inputs = {
        "input_ids": rng.integers(5, 3000, mask.shape).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": rng.integers(0, 2, mask.shape).astype(np.int32) * mask,
    }
    found = answer({name: tf.constant(value) for name, value in inputs.items()})
    real, more = mask.astype(bool), {}
    if isinstance(served, ServedFeatureTagger):  # it tags the first pieces of words alone
        words = np.array(
            [
                not piece.startswith("##") and piece not in ("[PAD]", "[CLS]", "[SEP]")
                for piece in served.tokenizer.vocab
            ]
        )
        real = real & words[inputs["input_ids"]]
        more = {"first_pieces": real.astype(np.int32)}
    wanted = model({**inputs, **more})
    if "probabilities" in found and choices:
        found, wanted = {"logits": tf.math.log(found["probabilities"])}, {"logits": tf.nn.log_softmax(wanted["logits"])}
    elif "score" in found:
        wanted = {"score": wanted["logits"][:, 0]}
    compared = [name for name in wanted if name in found]
    assert compared
    for name in compared:
        places = real if found[name].shape[:2] == mask.shape else ...
        np.testing.assert_allclose(
            found[name].numpy()[places], np.asarray(wanted[name])[places], rtol=1e-5, atol=1e-5, err_msg=name
        )


def test_a_row_has_the_same_answer_alone_and_in_any_batch(case):
    """Allows 2e-6: padded rows have other sizes, and a product of another size adds in another order."""
    _, _, rows, _, answer, _ = case

    def answers(chosen):
        outputs = answer(**{name: [row[name] for row in chosen] for name in rows[0]})
        return [{name: plain(value[place]) for name, value in outputs.items()} for place in range(len(chosen))]

    places = [*range(len(rows))[::-1], *range(len(rows))]
    singly = [answers([row])[0] for row in rows]
    for place, found in zip(places, answers([rows[place] for place in places]), strict=True):
        for key, value in singly[place].items():
            if isinstance(value, list) and len(value) < len(found[key]):  # padded to the longest list of the batch
                assert not any(found[key][len(value) :]), key
                found[key] = found[key][: len(value)]
            if np.asarray(value).dtype.kind == "f":
                np.testing.assert_allclose(found[key], value, rtol=2e-6, atol=2e-6, err_msg=key)
            else:
                assert found[key] == value, key


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_export_in_a_smaller_precision_answers_nearly_the_same(make, name, tmp_path):
    precision = "bfloat16"
    task, model, rows = make(name)
    with policy_of(precision):
        other = task.build_model()
    other.set_weights(model.get_weights())
    answers, logits = {}, {}
    for kind, of in (("float32", model), (precision, other)):
        folder = str(tmp_path / kind)
        export.export(
            make_served_model(task, of, ServingOptions()),
            task.config,
            export.ExportOptions(output=folder, batch_sizes=(), precision=kind),
        )
        answers[kind] = load_exported(folder)(**{key: [row[key] for row in rows] for key in rows[0]})
        ids = load_exported(folder, "ids")
        shape = (6, *[2] * (len(ids.inputs["input_ids"].shape) - 2), 40)
        logits[kind] = ids(
            **{
                key: np.random.default_rng(5).integers(0, most, shape) | (key == "input_mask")
                for key, most in (("input_ids", 3000), ("input_mask", 2), ("segment_ids", 2))
            }
        )
    numbers = [key for key, value in logits["float32"].items() if value.dtype == np.float32]
    assert numbers and list(answers[precision]) == list(answers["float32"])
    for key in numbers:
        exact, found = logits["float32"][key], logits[precision][key]
        assert found.dtype == np.float32 and 0 < np.abs(found - exact).mean() < 0.15 * exact.std(), key


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        (
            "squad",
            {"top_k": 3},
            "--top_k: read by fill-mask models and sparse vectors alone, "
            "got a model that gives answer, start, end, score, null_score",
        ),
        ("glue", {"no_answer": True}, "--no_answer: read by question answering alone, got a model that gives label"),
        (
            "squad",
            {"no_answer": False, "null_score_diff_threshold": 2.0},
            "--null_score_diff_threshold: expected --no_answer with it",
        ),
        (
            "squad",
            {"null_score_diff_threshold": float("nan")},
            "--null_score_diff_threshold: expected a number, got nan",
        ),
        (
            "glue",
            {"pooling": "mean"},
            r"--pooling: read by embeddings \(--head=embeddings\) alone, got a model that gives label",
        ),
        (
            "glue",
            {"threshold": 0.0},
            "--threshold: read by classifiers of several labels alone, got a model that gives label",
        ),
        (
            "glue regression",
            {"pretokenized": False},
            "--pretokenized: read by taggers alone, got a model that gives score",
        ),
        (
            "ner",
            {"head": "embeddings", "pretokenized": True},
            "--pretokenized: read by taggers alone, got a model that gives embedding",
        ),
    ],
)
def test_an_option_that_the_head_does_not_read_is_refused(make, name, options, told):
    task, model, _ = make(name)
    with pytest.raises(ValueError, match=told):
        make_served_model(task, model, ServingOptions(**options))


@pytest.mark.slow
def test_an_option_that_the_head_reads_is_used(make):
    task, model, rows = make("classification several")
    texts = {"text": [row["text"] for row in rows]}

    def answers(inputs, **options):  # without the graph, whose tracing takes longer than these few texts
        served = make_served_model(task, model, ServingOptions(**options))
        answer = served.answer_text({name: tf.constant(value) for name, value in inputs.items()})
        return {name: value.numpy() for name, value in answer.items()}

    all_labels, none = (answers(texts, threshold=threshold)["labels"] for threshold in (0.0, 1.0))
    assert all_labels.shape == (len(rows), 3) and none.shape == (len(rows), 0)
    task, model, rows = make("squad")  # trained with a threshold of 1.0
    texts = {name: [row[name] for row in rows if row["context"].strip()] for name in ("question", "context")}
    as_trained, always, never = (
        answers(texts, **options) for options in ({}, {"no_answer": False}, {"null_score_diff_threshold": -1e6})
    )
    odds = as_trained["null_score"] - as_trained["score"]
    assert [text == b"" for text in as_trained["answer"]] == (odds > 1.0).tolist()
    assert all(always["answer"]) and not any(never["answer"])


ENTITY = {"entities": ["Brno", ""], "types": ["LOC", ""], "starts": [3, 0], "ends": [7, 0], "scores": [0.5, 0.0]}


@pytest.mark.parametrize(
    ("kind", "row", "answer", "lines"),
    [
        (
            ServedFillMask,
            {},
            {"tokens": [["a", "b"], ["", ""]], "probabilities": [[0.75, 0.25], [0.0, 0.0]]},
            ["a 0.750   b 0.250"],
        ),
        (ServedClassifier, {}, {"label": "yes", "probabilities": [0.25, 0.75]}, ["yes  (0.750)"]),
        (ServedMultiLabel, {}, {"labels": ["a", "c", ""]}, ["a, c"]),
        (ServedMultiLabel, {}, {"labels": [""]}, ["(none)"]),
        (ServedRegression, {}, {"score": 2.5}, ["2.5000"]),
        (ServedChoice, {"choices": ["ran", "sat"]}, {"choice": 1, "probabilities": [0.25, 0.75]}, ["1: sat  (0.750)"]),
        (ServedSpans, {}, {"answer": "Ada", "start": 2, "end": 5, "score": 1.5}, ["Ada  [2:5]  score 1.50"]),
        (ServedSpans, {}, {"answer": "", "start": 0, "end": 0, "score": 1.5}, ["(no answer)  [0:0]  score 1.50"]),
        (ServedTagger, {}, ENTITY, ["LOC  Brno  [3:7]  (0.500)"]),
        (ServedTagger, {}, {name: [] for name in ENTITY}, ["(no entity)"]),
        (ServedEmbeddings, {}, {"embedding": [0.5, -1.0]}, ["0.5000 -1.0000"]),
    ],
)
def test_an_answer_reads_as_lines(kind, row, answer, lines):
    assert kind.describe(row, answer) == [f"  {line}" for line in lines]


@pytest.mark.slow
def test_words_beyond_one_window_reach_a_feature_based_tagger_as_in_training(make, golden, tmp_path):
    task, model, _ = make("ner features crf", max_seq_length=20)
    path = tmp_path / "long.conll"
    path.write_text("\n".join(f"{word}\tO" for word in WORDS * 6))
    trained = load_task(task.config)
    data = trained.data.resolve(
        DataFiles(predict_file=str(path)), Steps(train=False, evaluate=False, predict=True), model
    )
    batch = {key: tf.constant(value) for key, value in data.tests.source.batch(0).items()}
    part = {key: batch[key][:1] for key in ("word_features", "input_mask")}
    logits = model(part, training=False)["logits"].numpy()[0][:60]
    (tags,) = trained.answers.decode_tags(
        [logits], {name: value.numpy() for name, value in zip(CHAIN, model.crf.scores())}
    )
    served = make_served_model(task, model, ServingOptions(pretokenized=True))
    text = " ".join(WORDS * 6)
    found = served.answer_text({"text": tf.constant([text, "it"])})
    names = [task.options.labels[tag] for tag in tags]
    begins = [
        index
        for index, name in enumerate(names)
        if name != "O" and (name[0] == "B" or index == 0 or names[index - 1][2:] != name[2:])
    ]
    words = text.split()
    places = np.cumsum([0, *(len(word) + 1 for word in words)])
    kept = [kind for kind in found["types"].numpy()[0] if kind]
    assert len(kept) > 3 and found["starts"].numpy()[0][: len(kept)].tolist() == places[begins].tolist()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_embeddings_are_rows_of_the_encoder(golden, tmp_path, make, pooling):
    task, model, _ = make("glue")
    served = make_served_model(task, model, ServingOptions(head="embeddings", pooling=pooling))
    rows = [{"text": "The surveyor met her near Brno."}, {"text": "Nobody"}, {"text": ""}]
    if pooling == "cls":
        export.export(served, task.config, export.ExportOptions(output=str(tmp_path / "vectors"), batch_sizes=()))
        found = Predictor(str(tmp_path / "vectors")).answer(rows)
    else:
        vectors = served.answer_text({"text": tf.constant([row["text"] for row in rows])})["embedding"].numpy()
        found = [{"embedding": vector} for vector in vectors]
    plain = make_encoder(SMALL)
    plain.set_weights(model.encoder.get_weights())
    for row, answer in zip(rows, found):
        ids = [
            task.tokenizer.special_id("[CLS]"),
            *task.tokenizer.convert_tokens_to_ids(task.tokenizer.tokenize(row["text"])),
            task.tokenizer.special_id("[SEP]"),
        ]
        inputs = {
            "input_ids": np.array([ids], np.int32),
            "input_mask": np.ones((1, len(ids)), np.int32),
            "segment_ids": np.zeros((1, len(ids)), np.int32),
        }
        last = np.asarray(plain(inputs, training=False)["sequence_output"])[0]
        np.testing.assert_allclose(answer["embedding"], last[0] if pooling == "cls" else last.mean(axis=0), atol=1e-5)


@pytest.fixture(scope="module")
def exported_tags(make, tmp_path_factory):
    """Returns a tagger with a CRF, its rows, its folder and what the export told; it answers two windows at most."""
    folder = tmp_path_factory.mktemp("models") / "tags"
    task, model, rows = make("ner crf")
    lines = export.export(
        make_served_model(task, model, ServingOptions(max_windows=2)),
        task.config,
        export.ExportOptions(output=str(folder), batch_sizes=(1,)),
    )
    return task, model, rows, folder, lines


@pytest.mark.slow
def test_an_exported_crf_loads_and_answers_the_same(exported_tags):
    task, model, rows, folder, lines = exported_tags
    assert lines[0].endswith("custom ops: none") and lines[1].endswith("custom ops: none")
    wanted = answers_of(task, model, rows)
    for found, answer in zip(Predictor(str(folder)).answer(rows), wanted, strict=True):
        check_equal(found, answer)


@pytest.mark.slow
def test_an_exported_model_knows_how_its_answers_read_by_the_task_in_its_assets(exported_tags, tmp_path):
    folder, assets = str(tmp_path / "tags"), tmp_path / "tags/text/1/assets"
    shutil.copytree(exported_tags[3], folder)
    predictor = Predictor(folder)
    with pytest.raises(
        ValueError, match=r"tags/text/1: text: expected 0 to 2 windows of 48 tokens over a text, got 21$"
    ):
        predictor("the " * 200)
    assert predictor.describe is ServedTagger.describe
    # in order, as from a run
    assert tuple(predictor.answer([{"text": "a"}])[0]) == predictor.outputs == ServedTagger.outputs
    written = (assets / "config.yaml").read_text()
    for task_name in ("squad", "not_here.tags"):  # whose answers have other names; that cannot be imported
        (assets / "config.yaml").write_text(written.replace("task: ner", f"task: {task_name}"))
        other = Predictor(folder)
        assert other.describe is ServedModel.describe and sorted(other.outputs) == sorted(ServedTagger.outputs)
    (assets / "config.yaml").unlink()
    assert Predictor(folder).describe is ServedModel.describe
    with pytest.raises(
        ValueError, match="--pretokenized: read by taggers alone, got .*tags, an exported model, whose options are"
    ):
        Predictor(folder, ServingOptions(pretokenized=True))
    with pytest.raises(
        ValueError, match=r"expected a model that takes text .* got one of \['input_ids', 'input_mask', 'segment_ids'\]"
    ):
        Predictor(f"{folder}/ids/1")
