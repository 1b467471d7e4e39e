"""Extension points: what may be called instead of a method, for how long, and what may not."""

import numpy as np
import pytest

from official_bert.layers.attention import SelfAttention
from official_bert.layers.dense import Dense
from official_bert.layers.speed.extension_points import original, overridden

X = np.arange(12, dtype="float32").reshape(2, 6)


@pytest.fixture
def dense():
    layer = Dense(3)
    layer.build((None, 6))
    return layer


def test_an_override_takes_the_place_of_one_objects_method_and_goes_with_its_block(dense):
    other = Dense(3)
    other.build((None, 6))
    before, of_other = dense(X).numpy(), other(X).numpy()
    with overridden({(dense, "multiply"): lambda rows: rows[:, :3]}):
        np.testing.assert_array_equal(dense(X), X[:, :3])
        np.testing.assert_array_equal(other(X), of_other)
        np.testing.assert_array_equal(original(dense, "multiply")(X), before)
    np.testing.assert_array_equal(dense(X), before)


def test_overrides_nest_and_are_restored_even_after_an_error(dense):
    with overridden({(dense, "multiply"): lambda rows: rows[:, :3]}):
        with pytest.raises(RuntimeError, match="inside"), overridden({(dense, "multiply"): lambda rows: rows[:, 3:]}):
            np.testing.assert_array_equal(dense(X), X[:, 3:])
            raise RuntimeError("inside")
        np.testing.assert_array_equal(dense(X), X[:, :3])


def test_a_method_that_is_no_extension_point_is_refused(dense):
    for owner, name in ((dense, "build"), (dense, "nothing"), (SelfAttention(num_heads=2, hidden_size=4), "scores")):
        with (
            pytest.raises(TypeError, match=f"{type(owner).__name__}.{name} is no extension point"),
            overridden({(owner, name): print}),
        ):
            pass
