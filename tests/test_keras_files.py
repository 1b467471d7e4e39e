"""`.keras` files: Keras itself loads those that hold our layers, and `load_model` those of any model."""

import ast
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import official_bert
from official_bert.interface import keras_objects
from official_bert.layers.heads import OutputLayer
from official_bert.layers.transformer import TransformerLayer

PACKAGE = pathlib.Path(official_bert.__file__).parent


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
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
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
