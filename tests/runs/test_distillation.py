"""Students of teachers on tasks: what is learned of each kind of answer, kept or computed, and what is refused."""

import json

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import make_config
from made_teachers import write_teacher

from official_bert.config import build, merge, to_dict
from official_bert.data.rows import Rows
from official_bert.models.encoder import weights_by_name
from official_bert.run_folder import RunFolder
from official_bert.runs import whole_run
from official_bert.runs.beginning import phases
from official_bert.runs.beginning.preparation import prepare
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer

WORDS = ("atlas", "ferry", "clock", "river")
LARGER = {"num_hidden_layers": 2, "hidden_size": 32}


def rows_of(**columns):
    """Returns rows in memory of these columns, made of each word and its number."""
    return Rows(
        "train", [{name: make(word, number) for name, make in columns.items()} for number, word in enumerate(WORDS * 2)]
    )


def text(word, number):
    return f"the {word} {'and so on ' * (number % 3)}"


def of_classes(tmp_path):
    return (
        "classification",
        {"labels": ["good", "bad"]},
        rows_of(text=text, label=lambda _, number: ("good", "bad")[number % 2]),
    )


def of_several_labels(tmp_path):
    options = {"labels": ["good", "bad"], "kind": "multi_label"}
    return (
        "classification",
        options,
        rows_of(text=text, label=lambda _, number: ("good", "bad", "good,bad")[number % 3]),
    )


def of_scores(tmp_path):
    return "classification", {"kind": "regression"}, rows_of(text=text, label=lambda _, number: number / 2)


def of_choices(tmp_path):
    options = {"choice_columns": ["a", "b", "c"], "text_column": "text", "begin_column": ""}
    return (
        "swag",
        options,
        rows_of(text=text, a=lambda *_: "one", b=text, c=lambda word, _: word, label=lambda _, number: number % 3),
    )


def of_tags(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(
        "\n\n".join(
            f"the\tO\n{word}\tB-PER\nunbelievably\tO" + "\nferry\tB-LOC" * number for number, word in enumerate(WORDS)
        )
        + "\n"
    )
    return "ner", {}, str(path)


def of_spans(tmp_path):
    path = tmp_path / "train.json"
    questions = [
        {"id": word, "question": f"which {word}", "answers": [{"text": word, "answer_start": 4}]} for word in WORDS
    ]
    paragraphs = [{"context": f"the {one['id']} is old", "qas": [one]} for one in questions]
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    return "squad", {"max_query_length": 8, "doc_stride": 8}, str(path)


def of_pairs(tmp_path):
    return (
        "retrieval",
        {"group_size": 4},
        rows_of(text=lambda word, number: f"{word} {number}", text_pair=lambda _, number: f"a {number}"),
    )


def of_similarity(tmp_path):
    options = {"train_on": "scores", "score_column": "score", "score_range": [0, 5]}
    return "retrieval", options, rows_of(text=text, text_pair=lambda word, _: word, score=lambda _, number: number / 2)


def of_passages(tmp_path):
    return (
        "reranking",
        {"negative_columns": ["no"]},
        rows_of(
            text=lambda word, number: f"{word} {number}",
            text_pair=text,
            no=lambda word, number: ["road", "king"][: 1 + number % 2],
        ),
    )


def of_glue(tmp_path):
    (tmp_path / "train.tsv").write_text(
        "sentence\tlabel\n" + "".join(f"{text(word, number)}\t{number % 2}\n" for number, word in enumerate(WORDS * 2))
    )
    return "glue", {"dataset": "sst2"}, str(tmp_path / "train.tsv")


KINDS = [
    of_glue,
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in (
            of_classes,
            of_tags,
            of_pairs,
            of_several_labels,
            of_scores,
            of_choices,
            of_spans,
            of_similarity,
            of_passages,
        )
    ),
]


def configured(task, options, model=None, **training):
    return make_config(
        task,
        options=merge({"max_seq_length": 24}, options),
        model=model or {},
        training={"batch_size": 4, "eval_batch_size": 4, **training},
    )


def read(config, train_file):
    return prepare(load_task(config), DataFiles(train_file=train_file), Steps(evaluate=False))


def made(kind, tmp_path):
    """Returns task, options and data of a kind, with the labels in the options."""
    task, options, train_file = kind(tmp_path)
    return task, to_dict(read(configured(task, options), train_file).task.options), train_file


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_equal_to_its_teacher_has_no_loss_and_answers_may_be_kept_or_computed(kind, tmp_path):
    task, options, train_file = made(kind, tmp_path)
    path, teacher = write_teacher(tmp_path / "teacher", configured(task, options, LARGER))
    found = []
    for keep in ("kept", "computed"):
        run = read(configured(task, options, teacher=path, distillation={"keep": keep}), train_file)
        for number, weight in enumerate(weights_by_name(run.model).values()):
            weight.assign(np.random.default_rng(number).normal(0.0, 0.3, weight.shape))
        kept = run.train.batch(1)
        student = run.distilled
        batch = student.add_teacher_outputs(kept)
        assert (set(batch) == set(kept)) == (keep == "kept") and ("computed once" in run.notes[-1]) == (keep == "kept")
        losses, weights = student.losses(run.model(batch), batch), student.weights(batch)
        assert list(losses) == list(student.names) == list(weights)
        for name in losses:
            assert float(losses[name][1]) == float(weights[name]) > 0
        found.append(float(losses["answers"][0]))
        equal = student.losses(teacher(batch), batch)
        assert abs(float(equal["answers"][0])) < 1e-5 < found[-1]
        assert "answers" not in run.task.objective.losses(
            run.model(batch), {name: value for name, value in batch.items() if not name.startswith("teacher_")}
        )
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def trained(config, train_file):
    """Returns the weights after three steps from weights of one seed."""
    tf.keras.utils.set_random_seed(1)
    run = read(config, train_file)
    trainer = Trainer(run.recipe, tf.distribute.get_strategy(), 10)
    rows = trainer.run_steps(iter(run.train.dataset()), tf.constant(3)).numpy()
    return {name: weight.numpy() for name, weight in weights_by_name(run.model).items()}, dict(
        zip(trainer.step.names, rows.T)
    )


@pytest.mark.slow
def test_kept_and_computed_answers_and_micro_batches_train_the_same_weights(tmp_path):
    task, options, train_file = made(of_classes, tmp_path)
    path, _ = write_teacher(tmp_path / "teacher", configured(task, options, LARGER))
    options = options | {"dropout": 0.0}
    settings = {"kept": {"keep": "kept"}, "computed": {"keep": "computed"}, "in micro-batches": {"keep": "computed"}}
    found = {
        name: trained(
            configured(
                task, options, teacher=path, distillation=setting, accumulation_steps=2 if "micro" in name else 1
            ),
            train_file,
        )
        for name, setting in settings.items()
    }
    first, rows = found.pop("kept")
    assert np.all(rows["answers_loss"] > 0) and np.allclose(
        rows["loss"], rows["labels_loss"] + rows["answers_loss"], rtol=1e-5
    )
    for name, (weights, _) in found.items():
        for weight in first:
            np.testing.assert_allclose(weights[weight], first[weight], atol=2e-5, err_msg=f"{name}: {weight}")


def test_a_run_with_a_crf_is_refused_as_a_teacher(tmp_path):
    task, options, train_file = made(of_tags, tmp_path)
    path, _ = write_teacher(tmp_path / "teacher", configured(task, options | {"crf": True}))
    with pytest.raises(
        ValueError,
        match="training.teacher.*teacher.*: expected a teacher without a CRF: a CRF answers with whole chains",
    ):
        read(configured(task, options, teacher=path), train_file)


@pytest.mark.slow
def test_labels_of_the_teacher_are_put_into_the_students_order(tmp_path):
    task, options, train_file = made(of_classes, tmp_path)
    path, teacher = write_teacher(tmp_path / "teacher", configured(task, options, LARGER))
    turned = configured(task, options | {"labels": options["labels"][::-1]}, teacher=path)
    batch = read(turned, train_file).train.batch(0)
    np.testing.assert_allclose(batch["teacher_logits"], teacher(batch)["logits"][:, ::-1], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [of_classes, of_tags, of_passages])
def test_a_teacher_of_another_vocabulary_reads_rows_of_its_own(kind, tmp_path):
    task, options, train_file = made(kind, tmp_path)
    vocab = tmp_path / "vocab.txt"
    letters = [f"{mark}{chr(97 + place)}" for mark in ("", "##") for place in range(26)]
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *map(str, range(10))]))
    other = merge(
        to_dict(configured(task, options, LARGER)),
        {"tokenizer": {"vocab_file": str(vocab)}, "options": {"max_seq_length": 60}, "model": {"vocab_size": 67}},
    )
    path, teacher = write_teacher(tmp_path / "teacher", build(type(configured(task, {})), other))
    run = read(configured(task, options | {"max_seq_length": 60}, teacher=path), train_file)
    batch = run.train.batch(0)
    own = (
        load_task(build(type(run.task.config), other))
        .data.resolve(DataFiles(train_file=train_file), Steps(evaluate=False))
        .train.batch(0)
    )
    if kind is of_tags:
        for row in range(2):
            words = [np.flatnonzero(one["tag_mask"][row]) for one in (batch, own)]
            wanted = teacher(own)["logits"].numpy()[row, words[1]]
            np.testing.assert_allclose(batch["teacher_logits"][row][:, words[0]].T, wanted, atol=1e-4)
    else:
        assert {tuple(row) for row in np.round(batch["teacher_logits"], 3)} == {
            tuple(row) for row in np.round(teacher(own)["logits"], 3)
        }
    with pytest.raises(ValueError, match="another vocabulary than the student"):
        read(
            configured(task, options | {"max_seq_length": 60}, teacher=path, distillation={"keep": "computed"}),
            train_file,
        )


@pytest.mark.parametrize(
    ("options", "training", "wrong"),
    [
        (
            {},
            {"distillation": {"temperature": 3.0}},
            r"config.training.distillation.temperature: expected config.training.teacher with it",
        ),
        ({}, {"teacher": "T", "distillation": {"temperature": 0.0}}, "temperature: expected a number above 0"),
        ({}, {"teacher": "T", "distillation": {"answers": 0.0}}, "nothing would be learned from the teacher"),
        ({}, {"teacher": "T", "distillation": {"states": 1.0}}, r"states: expected 0 for task classification"),
        ({}, {"teacher": "T", "distillation": {"student_layers": "0;2"}}, "student_layers: expected numbers of layers"),
        (
            {},
            {"teacher": "T", "distillation": {"relation_heads": 2}},
            "relation_heads: expected training.distillation.relations with it, got 2 without",
        ),
        ({"labels": ["good", "other"]}, {"teacher": "T"}, r"config.training.teacher: .*its head is not used"),
        ({}, {"teacher": "nowhere"}, r"config.training.teacher: nowhere"),
        (
            {},
            {"teacher": "T", "distillation": {"keep": "kept", "kept_gigabytes": 1e-9}},
            "kept_gigabytes: expected room for",
        ),
        ({"max_seq_length": 65}, {"teacher": "T"}, "at most the model's 64 positions"),
    ],
)
def test_what_is_wrong_about_a_teacher_is_told_before_training(teacher_of_classes, options, training, wrong):
    path, task, own, train_file = teacher_of_classes
    if training.get("teacher") == "T":
        training = training | {"teacher": path}
    with pytest.raises(ValueError, match=wrong) as error:
        model = {"max_position_embeddings": 128} if "max_seq_length" in options else {}
        rows = (
            train_file
            if "labels" not in options
            else rows_of(text=text, label=lambda _, number: options["labels"][number % 2])
        )
        read(configured(task, own | options, model, **training), rows)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def teacher_of_classes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    task, options, train_file = made(of_classes, folder)
    return write_teacher(folder / "teacher", configured(task, options, LARGER))[0], task, options, train_file


def test_a_training_that_would_run_without_its_teacher_is_refused(teacher_of_classes, tmp_path, monkeypatch):
    path, name, own, train_file = teacher_of_classes
    task = load_task(configured(name, own, teacher=path, steps=1, epochs=0.0))
    monkeypatch.setattr(phases, "prepare", lambda task, files, steps, first=None: task.data.resolve(files, steps))
    with pytest.raises(ValueError, match=f"config.training.teacher: {path}: expected an objective with this teacher"):
        whole_run.train(
            task,
            DataFiles(train_file=train_file),
            str(tmp_path),
            Placement(),
            steps=Steps(evaluate=False),
            report=lambda _: None,
        )
    assert not RunFolder(str(tmp_path)).checkpoints()


def test_all_phases_of_a_run_learn_from_one_teacher(teacher_of_classes):
    path, name, own, train_file = teacher_of_classes
    config = configured(name, own, teacher=path, epochs=0.0)
    parts = [{"steps": 1, "options": {"max_seq_length": 16}}, {"steps": 2}]
    task = load_task(build(type(config), merge(to_dict(config), {"phases": parts})))
    planned, _ = phases.plan(task, DataFiles(train_file=train_file), Steps(evaluate=False))
    first, second = (phase.recipe.objective.targets.teacher for phase in planned)
    assert first is second and [phase.last for phase in planned] == [1, 3]


@pytest.mark.parametrize(
    ("task", "options", "wrong"),
    [
        ("ner", {"crf": True}, "config.options.crf: expected none beside training.teacher"),
        ("splade", {}, "task splade has no answers"),
        ("retrieval", {"matryoshka": [8]}, "config.options.matryoshka: expected none"),
    ],
)
def test_tasks_without_soft_answers_have_no_teacher(task, options, wrong):
    with pytest.raises(ValueError, match=wrong):
        load_task(configured(task, options, teacher="anything"))


def test_answers_that_find_no_room_are_computed(teacher_of_classes):
    path, task, options, train_file = teacher_of_classes
    run = read(configured(task, options, teacher=path, distillation={"kept_gigabytes": 0.0}), train_file)
    assert "computed at each step (64 bytes: more than kept_gigabytes 0)" in run.notes[
        -1
    ] and "teacher_logits" not in run.train.batch(0)


def test_a_run_with_a_teacher_evaluates_and_answers_without_it(teacher_of_classes, tmp_path):
    _, task, options, _ = teacher_of_classes
    run = load_task(configured(task, options, teacher="gone"))
    data = run.data.resolve(DataFiles(eval_file=rows_of(text=text, label=lambda *_: "good")), Steps(train=False))
    batch = data.held_out.source.batch(0)
    assert list(run.objective.losses(data.model(batch), batch)) == ["loss"] and data.distilled is None
