"""The files of docs/own, which replace a part from outside the package: hand-worked numbers, and whole commands."""

import importlib.util
import json
import pathlib
import random
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf
from commands import InThisProcess, printed_metrics
from made_finetuning import make_config

from official_bert.config import OptimizerConfig
from official_bert.objectives.labels import OneLabel
from official_bert.objectives.objective import Objective, Sum
from official_bert.tasks.answers import Answers
from official_bert.tasks.data import Data
from official_bert.tasks.own_parts import check_objective
from official_bert.tasks.task import TaskBase
from official_bert.tasks.texts import classification
from official_bert.training import optimization

LOGITS = tf.zeros((2, 3))
OWN = pathlib.Path(__file__).parent.parent / "docs" / "own"
FILES = sorted(OWN.glob("*.py"))
FINE_TUNED = ("loss", "penalty", "pooling", "head", "attention", "optimizer", "both")
BOTH = '''"""A pooling and a loss of one's own."""

from my_project import loss, pooling


class Task(pooling.Task, loss.Task):
    """Classification with both."""
'''


@pytest.fixture(scope="module")
def own():
    """Returns a file of docs/own as a module, imported once."""
    modules = {}

    def module(name):
        if name not in modules:
            spec = importlib.util.spec_from_file_location(f"own_{name}", OWN / f"{name}.py")
            modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(modules[name])
        return modules[name]

    return module


def test_each_part_is_a_file_of_at_most_60_lines_that_the_page_names():
    page = (OWN.parent / "make_it_your_own.md").read_text(encoding="utf-8")
    assert len(FILES) == 9
    for path in FILES:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 60 and f"(own/{path.name})" in page


def test_focal_loss_counts_sure_texts_less(own):
    task = own("loss").Task(make_config("classification", options={"labels": ["a", "b"]}))
    logits = tf.constant([[np.log(3.0), 0.0], [0.0, np.log(3.0)], [5.0, 1.0]])
    batch = {"label_ids": tf.constant([0, 0, 1]), "example_weights": tf.constant([1.0, 1.0, 0.0])}
    loss, weight = task.objective.losses({"logits": logits}, batch)["loss"]
    assert float(weight) == 2.0  # 3/4 and 1/4 are the shares of the right labels
    np.testing.assert_allclose(loss, -(0.25**2) * np.log(0.75) - 0.75**2 * np.log(0.25), rtol=1e-6)


def test_a_penalty_is_added_to_the_loss_of_labels(own):
    task = own("penalty").Task(make_config("classification", options={"labels": ["a", "b"]}))
    assert task.objective.names == ("loss", "penalty") and task.objective.counter_names == ("accuracy",)
    logits = tf.constant([[np.log(3.0), 0.0], [0.0, 0.0], [5.0, 1.0]])
    batch = {"label_ids": tf.constant([0, 0, 1]), "example_weights": tf.constant([1.0, 1.0, 0.0])}
    total, weight = task.objective.losses({"logits": logits}, batch)["penalty"]
    assert float(weight) == 2.0 == float(task.objective.weights(batch)["penalty"])
    np.testing.assert_allclose(total, 0.01 * (np.log(4.0) ** 2 + np.log(2.0) ** 2), rtol=1e-6)


@pytest.mark.parametrize("name", ["losses", "loss_names", "loss_weights", "counters", "predictions", "predicted"])
def test_an_override_that_nothing_calls_is_refused(name):
    with pytest.raises(ValueError, match=rf"class Task: expected no {name}, which nothing calls: .* its own "):
        type("Task", (classification.Task,), {name: ()})


@pytest.mark.parametrize("name", ["served", "served_classes"])
def test_served_models_that_nothing_asks_for_are_refused(name):
    with pytest.raises(ValueError, match=rf"class Task: expected no {name}, which nothing calls: .* in `serving`"):
        type("Task", (classification.Task,), {name: ()})


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("read_file", "classification.TableData its own read_file, .* data = "),
        ("batch_spec", "classification.TableData its own batch_spec, .* data = "),
        ("best_metric", "classification.TableAnswers its own best_metric, .* answers = "),
        ("write_set", "classification.TableAnswers its own write_set, .* answers = "),
        ("flops", "a Recipe with your `flops` from `recipe`"),
    ],
)
def test_a_method_of_data_or_answers_is_refused_in_a_task(name, place):
    with pytest.raises(ValueError, match=rf"class Task: expected no {name}, which nothing calls: .*{place}"):
        type("Task", (classification.Task,), {name: lambda self, *_: None})
    if name in ("batch_spec", "best_metric"):  # also of a task that has named no class of its own
        with pytest.raises(
            ValueError, match=rf"class Own: expected no {name}, .*tasks\.(data.Data|answers.Answers) its"
        ):
            type("Own", (TaskBase,), {name: lambda self, *_: None})


def test_files_that_a_task_lists_itself_are_refused():
    with pytest.raises(ValueError, match="expected no data, which nothing calls: give a `Data` its own `sources`"):
        type("Task", (classification.Task,), {"data": lambda self, files: {}})


def test_a_task_is_three_short_objects():
    members = [[name for name in dir(part) if not name.startswith("_")] for part in (TaskBase, Data, Answers)]
    assert max(map(len, members)) <= 15, members


BATCH = {"label_ids": tf.constant([0, 1]), "example_weights": tf.constant([1.0, 0.0])}
WRONG = [
    ({"losses": lambda *_: {"cost": (0.0, 1.0)}}, r"losses: expected a dict of \['own'\], got \['cost'\]"),
    (
        {"losses": lambda *_: {"own": (tf.ones(2), 1.0)}},
        r"losses: expected a sum and a weight of own, .* \[2\] and \[\]",
    ),
    ({"losses": lambda *_: {"own": 3.0}}, "losses: expected a sum and a weight of own, got float"),
    ({"losses": lambda _, outputs, batch: outputs["scores"]}, r"losses: KeyError: 'scores'; .* logits \[2, 3\]; exam"),
    (
        {"losses": lambda _, outputs, batch: outputs["logits"] + tf.ones([7])},
        r"losses: InvalidArgumentError: .*\[2,3\]",
    ),
    ({"weights": lambda *_: {"own": tf.ones(2)}}, r"weights: expected a number of own, .* the shape \[2\]"),
    ({"weights": lambda *_: {"own": 2.0}}, "weights: expected the weight of own that losses gives, 1, got 2"),
    ({"counters": lambda *_: {"hits": (0.0, 1.0)}}, r"counters: expected a dict of \[\], got \['hits'\]"),
    ({"predictions": lambda *_: {"rows": tf.ones(5)}}, r"predictions: .* each of the 2 rows .* the shape \[5\]"),
]


@pytest.mark.parametrize(("methods", "told"), WRONG)
def test_an_objective_that_does_not_fit_is_told_before_the_first_step(methods, told):
    fitting = {
        "__module__": "test_own_parts",
        "names": ("own",),
        "losses": lambda *_: {"own": (tf.constant(2.0), tf.constant(1.0))},
    }
    model = types.SimpleNamespace(
        trainable_variables=[], non_trainable_variables=[], stateless_call=lambda *_, **__: ({"logits": LOGITS}, [])
    )
    check_objective(Sum((OneLabel(), type("Own", (Objective,), fitting)())), model, BATCH)
    with pytest.raises(ValueError, match=rf"^test_own_parts.Own\.{told}") as error:
        check_objective(Sum((OneLabel(), type("Own", (Objective,), fitting | methods)())), model, BATCH)
    assert "\n" not in str(error.value)


def test_the_maximum_is_that_of_real_tokens(own):
    task = own("pooling").Task(make_config("classification", options={"labels": ["a", "b"]}))
    model = task.build_model()
    task.draw_first_weights(model)
    inputs = {
        "input_ids": tf.constant([[5, 9, 7, 8]]),
        "input_mask": tf.constant([[1, 1, 1, 0]]),
        "segment_ids": tf.zeros((1, 4), tf.int32),
    }
    rows = model.encoder(inputs)["sequence_output"].numpy()[0, :3]
    weights, bias = (variable.numpy() for variable in model.classifier.weights)  # [K,D], [K]
    np.testing.assert_allclose(model(inputs)["logits"][0], weights @ rows.max(axis=0) + bias, rtol=1e-5, atol=1e-6)


def test_a_step_of_lion_is_the_rate_in_the_direction_of_the_sign(own):
    config = OptimizerConfig(beta_1=0.9, beta_2=0.99, weight_decay_rate=0.5)
    task = own("optimizer").Task(make_config("classification"))
    assert task.update is not optimization.update
    decision = optimization.Decision(tf.constant(0.5), tf.constant(0.1), tf.constant(0), tf.constant(True))
    step = optimization.pure_update(config, (3,), True, task.update)
    before, mean, gradient = (tf.constant(row) for row in ([1.0, 2.0, 0.0], [0.0, -1.0, 0.0], [4.0, 2.0, 0.0]))
    weight, first, second = step(before, mean, tf.zeros(3), gradient, decision)
    # gradients are halved: 0.1 * 2 > 0; 0.9 * -1 + 0.1 * 1 < 0; 0
    np.testing.assert_allclose(weight, [1 - 0.1 * (1 + 0.5), 2 - 0.1 * (-1 + 1.0), 0.0], rtol=1e-6)
    np.testing.assert_allclose(first, [0.02, -0.98, 0.0], rtol=1e-6)
    np.testing.assert_array_equal(second, np.zeros(3))


@pytest.fixture(scope="module")
def project(tmp_path_factory, golden):
    """Returns a person with the files in `my_project`, a checkpoint, a table and a text."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(OWN, folder / "my_project")
    (folder / "my_project/both.py").write_text(BOTH)
    shutil.copytree(golden / "tf1_bert", folder / "bert")
    shutil.copy(golden / "vocab_uncased.txt", folder / "bert/vocab.txt")
    draw = random.Random(0)
    words = ["the", "while", "it", "in", "three", "ferry"]
    rows = [(" ".join([*draw.sample(words, 3), kind]), kind) for kind in ("violin", "copper") * 40]
    (folder / "train.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    sentences = [" ".join(draw.sample(words, 5)) + "." for _ in range(300)]
    (folder / "text.txt").write_text("".join(f"{line}\n" + "\n" * (not n % 5) for n, line in enumerate(sentences, 1)))
    return InThisProcess(folder)


@pytest.mark.slow
@pytest.mark.parametrize("part", FINE_TUNED)
def test_a_fine_tuning_with_a_part_of_ones_own_learns_answers_and_exports(project, part):
    rate = "1e-3" if part == "optimizer" else "3e-3"
    done = project.types(
        f"python -m official_bert.run_finetuning --task=my_project.{part} --train_file=train.csv "
        f"--init_checkpoint=bert --output_dir=runs/{part} --max_seq_length=16 --train_batch_size=8 --cache_dir= "
        f"--num_train_epochs=12 --learning_rate={rate}"
    )
    assert printed_metrics(done.out)["accuracy"] == 1.0
    ask = f"python -m official_bert.run_predict --task=my_project.{part} 'three violin the' --model="
    answer = project.types(f"{ask}runs/{part}").out
    assert "violin" in answer.splitlines()[1]
    project.types(
        f"python -m official_bert.run_export --task=my_project.{part} --checkpoint=runs/{part} "
        f"--output=models/{part} --warmup_batch_sizes="
    )
    assert project.types(f"{ask}models/{part}").out == answer


@pytest.mark.slow
@pytest.mark.parametrize(("part", "dynamic"), [("masking", True), ("falling_rate", True), ("objective", False)])
def test_a_pre_training_with_a_part_of_ones_own_learns(project, part, dynamic):
    project.types(
        "python tools/create_pretraining_data.py --input_file=text.txt --vocab_file=bert/vocab.txt "
        f"--output_file={part}.tfrecord --max_seq_length=32 --sentence_task=none --num_workers=1 "
        f"{'--masking=dynamic' if dynamic else '--max_predictions_per_seq=5 --dupe_factor=5'}"
    )
    model = {
        "vocab_size": 3000,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    }
    config = {
        "task": f"my_project.{part}",
        "model": model,
        "optimizer": {"learning_rate": 0.01, "warmup_steps": 10},
        "options": {"max_seq_length": 32, "max_predictions_per_seq": 5, "sentence_task": "none"}
        | ({"max_predictions_per_seq": 10, "masking": {"rate": 0.3}} if part == "falling_rate" else {}),
        "training": {"batch_size": 16, "steps": 150, "log_every": 50},
    }
    (project.folder / f"{part}.yaml").write_text(json.dumps(config))
    project.types(
        f"python -m official_bert.run_pretraining --config={part}.yaml --input_file={part}.tfrecord "
        f"--eval_input_file={part}.tfrecord --vocab_file=bert/vocab.txt --output_dir=runs/{part}",
        messages=(r".*",),
    )
    log = [json.loads(line) for line in (project.folder / f"runs/{part}/log.jsonl").read_text().splitlines()]
    losses = [line["train/loss"] for line in log if "train/loss" in line]
    assert losses[-1] < losses[0] - 0.2
    if part == "objective":
        assert log[-1]["eval/length_loss"] < 0.7 * np.log(13)  # of 0 to 12 letters, all alike
