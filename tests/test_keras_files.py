"""`.keras` files: Keras itself loads those that hold our layers, and `load_model` those of any model."""

import ast
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

import official_bert
from official_bert.interface import keras_objects
from official_bert.layers import adapters, attention, embeddings, heads, layer_mixing, layer_norm
from official_bert.layers.heads import OutputLayer
from official_bert.layers.relatives import (
    convolution,
    crf,
    disentangled_attention,
    more_norms,
    pre_norm,
    relative_positions,
)
from official_bert.layers.transformer import TransformerLayer
from official_bert.model_config import ModelConfig
from official_bert.models import bi_encoder, classifier, pretrainer, replaced_tokens, span_boundary
from official_bert.models.encoder import BertEncoder, encoder_settings
from official_bert.models.encoder_decoder.model import EncoderDecoder
from official_bert.tasks.tagging import word_tagger
from official_bert.training.optimization import BertOptimizer

PACKAGE = pathlib.Path(official_bert.__file__).parent
# A model of all layers with the names of their fields before they were those of `ModelConfig`.
EARLIER = pathlib.Path(__file__).parent / "fixtures" / "keras_of_0_2.tar.xz"


def own_model():
    """A model that is none of ours, with two of our layers in it."""
    rows = keras.Input((4, 8))
    mask = keras.Input((1, 1, 4), dtype="bool")
    values = TransformerLayer(num_heads=2, hidden_size=8, intermediate_size=16)(rows, mask)
    return keras.Model([rows, mask], OutputLayer(3)(values))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "mine.keras"
    model = own_model()
    model.save(path)
    inputs = [np.ones((2, 4, 8), "float32"), np.ones((2, 1, 1, 4), bool)]
    return path, inputs, np.asarray(model(inputs))


def test_every_class_that_is_registered_is_one_that_the_import_registers():
    files = [
        path
        for path in PACKAGE.rglob("*.py")
        if "register_keras_serializable" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
        and any("register_keras_serializable" in ast.unparse(one) for one in node.decorator_list)
    ]
    assert {str(path) for path in files} == {module.__file__ for module in keras_objects.MODULES}


def test_a_model_of_ones_own_with_our_layers_is_loaded(saved, tmp_path):
    path, inputs, wanted = saved
    np.testing.assert_array_equal(official_bert.load_model(path)(inputs), wanted)
    (tmp_path / "broken.keras").write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"broken\.keras: cannot be read as a Keras model: "):
        official_bert.load_model(tmp_path / "broken.keras")
    with pytest.raises(ValueError, match=r"none\.keras: cannot be read as a Keras model: File not found"):
        official_bert.load_model(tmp_path / "none.keras")
    model = own_model()
    model.layers[-1].weights[0].assign(np.full(model.layers[-1].weights[0].shape, np.nan))
    model.save(tmp_path / "nan.keras")
    with pytest.raises(ValueError, match=r"nan\.keras: .*: expected finite numbers"):
        official_bert.load_model(tmp_path / "nan.keras")


def test_a_model_that_an_earlier_version_wrote_is_loaded_with_the_same_outputs(tmp_path):
    shutil.unpack_archive(EARLIER, tmp_path, filter="data")
    values = np.load(tmp_path / "layers.npz")
    model = official_bert.load_model(tmp_path / "layers.keras")
    found = model([values[f"in_{number}"] for number in range(len(model.inputs))])
    for number, output in enumerate(found):
        np.testing.assert_allclose(output, values[f"out_{number}"], rtol=1e-4, atol=1e-5, err_msg=str(number))


class Unknown(keras.layers.Layer):
    """A layer that nobody registers."""

    def call(self, x):
        """Returns x."""
        return x


def test_an_unknown_class_is_named_with_the_remedy(tmp_path):
    keras.Sequential([keras.Input((2,)), Unknown()]).save(tmp_path / "theirs.keras")
    with pytest.raises(
        ValueError, match="it holds a class Unknown, which is not registered with Keras: import its module first"
    ) as told:
        official_bert.load_model(tmp_path / "theirs.keras")
    assert "\n" not in str(told.value)


LOADS = (
    "model = keras.models.load_model(sys.argv[1]); assert 'TransformerLayer' in [type(layer).__name__ for layer "
    "in model.layers]"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "imports",
    [
        "import official_bert, keras",
        "import keras; import official_bert.layers.attention",
        "import official_bert; from tensorflow import keras as k; k.layers.Dense(1); import keras",
    ],
)
def test_keras_loads_our_layers_in_a_new_process(saved, imports):
    code = f"import sys\n{imports}\n{LOADS}\n"
    done = subprocess.run([sys.executable, "-c", code, str(saved[0])], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


TINY = ModelConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=8,
)
ELECTRA = {"discriminator": encoder_settings(TINY), "generator": encoder_settings(TINY)}
ON_ENCODERS = (
    bi_encoder.BiEncoder,
    bi_encoder.SparseEncoder,
    classifier.Classifier,
    classifier.ChoiceClassifier,
    classifier.Tagger,
    classifier.SpanPredictor,
    pretrainer.Pretrainer,
    pretrainer.ObservedPretrainer,
    span_boundary.SpanPretrainer,
    replaced_tokens.ReplacedTokenDetector,
    word_tagger.CRFTagger,
)
LAYERS = (
    lambda: adapters.LowRankAdapter(4),
    lambda: attention.SelfAttention(TINY),
    lambda: convolution.Convolution(TINY),
    lambda: crf.CRF(3),
    lambda: disentangled_attention.DisentangledAttention(TINY),
    lambda: embeddings.Embeddings(TINY),
    lambda: heads.MaskedLMHead(TINY),
    lambda: heads.OutputLayer(3),
    lambda: heads.SpanBoundaryHead(TINY),
    lambda: layer_mixing.LayerMixing("sum"),
    lambda: layer_norm.LayerNormalization(),
    lambda: more_norms.NormalizedAttention(TINY),
    lambda: more_norms.TwiceNormLayer(TINY),
    lambda: pre_norm.PreNormLayer(TINY),
    lambda: relative_positions.DistanceEmbeddings(TINY),
    lambda: relative_positions.RelativePositions(TINY),
    lambda: TransformerLayer(TINY),
)
LOAD_ALL = """
import sys
from official_bert.models.interchange.projects.keras_files import load_keras
for path in sys.argv[2:]:
    model = load_keras(path)
    print(type((model.layers or [model])[0] if type(model).__name__ == "Sequential" else model).__name__)
import keras
print(type(keras.saving.load_model(sys.argv[1]).optimizer).__name__)
"""


@pytest.mark.slow
def test_a_file_of_each_registered_class_is_loaded_in_a_new_process(tmp_path):
    models = {kind.__name__: kind.make(TINY) for kind in ON_ENCODERS}
    models["BertEncoder"] = BertEncoder(**encoder_settings(TINY))
    models["EncoderDecoder"] = EncoderDecoder.make(TINY, {"decoder": encoder_settings(TINY)})
    models["FeatureTagger"] = word_tagger.FeatureTagger.make(TINY, {"feature_layers": 1, "lstm_size": 4})
    models["ReplacedTokenPretrainer"] = replaced_tokens.ReplacedTokenPretrainer(**ELECTRA)
    for layer in (make() for make in LAYERS):
        models[type(layer).__name__] = keras.Sequential([layer])
    compiled = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    compiled.compile(BertOptimizer(10), "mse")
    known = keras.saving.get_custom_objects().values()
    registered = {value.__name__ for value in known if value.__module__.startswith("official_bert")}
    assert {*models, "BertOptimizer"} == registered
    compiled.save(tmp_path / "BertOptimizer.keras")
    for name, model in models.items():
        model.build() if isinstance(model, BertEncoder) else None
        model.save(tmp_path / f"{name}.keras")
    paths = [str(tmp_path / f"{name}.keras") for name in ("BertOptimizer", *models)]
    done = subprocess.run([sys.executable, "-c", LOAD_ALL, *paths], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [*models, "BertOptimizer"], done.stderr[-2000:]
