"""Fixtures for all tests: the repository, the golden results, small models. TensorFlow is made quiet first."""

import copy
import gc
import os
import pathlib
import re
import sys
import types
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import pytest
import shape_checks

shape_checks.switch_on()  # before any test imports the encoder
ROOT = pathlib.Path(__file__).parent.parent
# Files of ten seconds and more, the longest first. Three processes take whole files in this order (`make test`: on two
# cores, the third works while others wait for servers and commands); a long one at the end would leave the others
# without work.
LONGEST_FIRST = (
    "models/interchange/members/test_fixtures.py",
    "tasks/test_served_models.py",
    "serving/test_explanations.py",
    "training/test_distribution.py",
    "journeys/test_from_text.py",
    "training/test_step.py",
    "test_facade.py",
    "models/test_keras_methods.py",
    "models/test_graph_histograms.py",
    "models/test_encoder_decoder.py",
    "serving/test_export.py",
    "server/test_server.py",
    "serving/test_served_layers.py",
    "training/test_optimization.py",
    "tools/test_convert_checkpoint.py",
    "serving/test_bounds.py",
    "text/test_graph.py",
    "tools/test_prepare_corpus.py",
    "test_run_pretraining.py",
    "models/interchange/test_sentence_transformers.py",
    "tasks/test_hostile_options.py",
    "server/test_bad_clients.py",
    "test_earlier_runs.py",
    "test_json_types.py",
    "data/tabular/test_table_readings.py",
    "training/test_loop.py",
    "test_run_squad.py",
    "test_run_finetuning.py",
    "models/test_first_weights.py",
    "layers/test_fused.py",
    "models/test_encoder.py",
    "models/interchange/test_formats.py",
    "training/test_adapters.py",
    "tasks/tagging/test_served_tagger.py",
    "data/pretraining/test_dynamic_masking.py",
    "tasks/tagging/test_tagging_task.py",
    "text/test_fast_tokenization.py",
    "data/pretraining/test_packed_rows.py",
)

# In these TensorFlow optimises graphs, as it does for users, and in tests that are slow or marked. It takes longer than
# what most of the others compute.
OPTIMIZED_GRAPHS = ("serving/", "journeys/", "server/", "tasks/test_served_models.py")


def pytest_ignore_collect(collection_path, config):
    """Leaves out files of slow tests alone if none is asked for: each process would import what they need."""
    slow_alone = re.compile(r"^pytestmark = .*pytest\.mark\.slow\b", re.MULTILINE)
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        return bool(slow_alone.search(collection_path.read_text(encoding="utf-8"))) or None
    return None


def pytest_collection_modifyitems(items):
    """Puts the longest files first; all others keep their order."""
    tests = ROOT / "tests"
    places = {tests / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish():
    """Makes Python search for garbage less often, not in the packages that tests import, and not whenever a server
    unloads a model: a search among all that the tests before have made takes a third of a second and more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    for name in ("model_manager", "server"):
        if module := sys.modules.get(f"official_bert.server.{name}"):
            module.gc = types.SimpleNamespace(collect=lambda: 0, freeze=lambda: None)


def pytest_runtest_protocol(item):
    """Switches TensorFlow's optimizer of graphs on or off, before the fixtures of the test."""
    if "tensorflow" in sys.modules:
        plain = not (
            item.path.relative_to(ROOT / "tests").as_posix().startswith(OPTIMIZED_GRAPHS)
            or item.get_closest_marker("slow")
            or item.get_closest_marker("optimized_graphs")
        )
        sys.modules["tensorflow"].config.optimizer.set_experimental_options({"disable_meta_optimizer": plain})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown():
    """Fails a test that leaves settings behind which would change the numbers of those after it."""
    result = yield
    if left := left_settings():
        pytest.fail(f"left behind, and restored now: {', '.join(left)}", pytrace=False)
    return result


def left_settings() -> list[str]:
    """Restores what Keras and TensorFlow have in a new process, and returns what was different."""
    tf, keras = sys.modules.get("tensorflow"), sys.modules.get("keras")
    left = []
    if keras and (policy := keras.config.dtype_policy().name) != "float32":
        keras.config.set_dtype_policy("float32")
        left.append(f"Keras' policy {policy} (distribution.own_precision restores it)")
    if tf and tf.config.functions_run_eagerly():
        tf.config.run_functions_eagerly(False)
        left.append("functions that run eagerly")
    if tf and not tf.config.experimental.tensor_float_32_execution_enabled():
        tf.config.experimental.enable_tensor_float_32_execution(True)
        left.append("products without TF32")
    return left


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    """Returns the folder of results of the 2018 code; its README describes them."""
    return ROOT / "tests" / "golden"


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """Returns the repository's folder."""
    return ROOT


# Small models of every head over the golden vocabulary, with weights large enough to make their answers differ.


@pytest.fixture(scope="session")
def small_config():
    from official_bert.config import ModelConfig

    return ModelConfig(
        vocab_size=3000,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        initializer_range=0.5,
    )


@pytest.fixture(scope="session")
def classifier(small_config):
    from official_bert.models.classifier import Classifier

    return lambda num_classes: Classifier.make(small_config, {"num_classes": num_classes})


@pytest.fixture(scope="session")
def choice_classifier(small_config):
    from official_bert.models.classifier import ChoiceClassifier

    return ChoiceClassifier.make(small_config)


@pytest.fixture(scope="session")
def token_tagger(small_config):
    import keras

    from official_bert.models.classifier import Tagger

    keras.utils.set_random_seed(2)
    return Tagger.make(small_config, {"num_tags": 5})


@pytest.fixture(scope="session")
def span_model(small_config):
    import keras

    from official_bert.models.classifier import SpanPredictor

    keras.utils.set_random_seed(1)
    return SpanPredictor.make(small_config)


@pytest.fixture(scope="session", autouse=True)
def shared_tokenizers():
    """Has served models of equal vocabularies share a tokenizer, which is traced once, for eager calls too."""
    from eager_models import trace_eager_calls

    from official_bert.text import graph_loading

    new, made = graph_loading.GraphTokenizer, {}

    def shared(vocab_file, do_lower_case=True, vocab=None):
        if vocab or not os.path.isfile(vocab_file):
            return new(vocab_file, do_lower_case, vocab)
        key = pathlib.Path(vocab_file).read_bytes(), do_lower_case
        if key not in made:
            tokenizer = trace_eager_calls(new(vocab_file, do_lower_case))
            made.pop(next(iter(made)) if len(made) == 8 else None, None)
            made[key] = tokenizer
        tokenizer = copy.copy(made[key])
        tokenizer.host = copy.copy(tokenizer.host)
        tokenizer.vocab_file = tokenizer.host.vocab_file = vocab_file
        return tokenizer

    with mock.patch.object(graph_loading, "GraphTokenizer", shared):
        yield


@pytest.fixture(scope="session")
def graph_tokenizer(golden, shared_tokenizers):
    from official_bert.text import graph_loading

    return graph_loading.load_graph(str(golden / "vocab_uncased.txt"))


@pytest.fixture(scope="session")
def softmax():
    def of(x):
        exponents = np.exp(x - x.max(-1, keepdims=True))
        return exponents / exponents.sum(-1, keepdims=True)

    return of


@pytest.fixture
def eager_predictors(monkeypatch):
    """Has predictors of runs and checkpoints compute eagerly."""
    from eager_models import eager_function_of

    from official_bert.interface import predictor

    monkeypatch.setattr(predictor, "function_of", eager_function_of)


@pytest.fixture
def eager_steps():
    """Has trainings and evaluations take their steps eagerly."""
    from eager_models import eager_functions

    with eager_functions():
        yield
