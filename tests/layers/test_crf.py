"""The CRF against values worked out by hand and against an enumeration of all paths."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.data.tagged.chunk_tags import convert_tags, legal_transitions
from official_bert.layers.relatives import crf
from official_bert.layers.relatives.crf import CRF, Scores

TAGS = ["B-PER", "I-PER", "B-LOC", "I-LOC", "O"]


def worked_example():
    """Returns (emissions [1,5,T], scores) of the specification's example, "John lives in Paris and"."""
    emissions = [[2, 1, -1, -1, 0], [-1, -1, -1, -1, 1], [-1, -1, -1, -1, 1], [-1, -1, 2, 1, 0]]
    transitions = np.full((5, 5), -10.0, np.float32)
    for before, after, score in (("B-PER", "O", 0.0), ("O", "O", 0.1), ("O", "B-LOC", 0.0)):
        transitions[TAGS.index(before), TAGS.index(after)] = score
    return np.array([emissions], np.float32), Scores(transitions, np.zeros(5, np.float32), np.zeros(5, np.float32))


def test_the_worked_example_scores_6_1_and_is_the_best_path():
    emissions, scores = worked_example()
    path = [TAGS.index(tag) for tag in ("B-PER", "O", "O", "B-LOC")]
    mask = np.ones((1, 4), bool)
    assert float(crf.path_score(emissions, np.array([path]), mask, scores)[0]) == pytest.approx(6.1)
    assert np.asarray(crf.best_path(emissions, mask, scores)).tolist() == [path]


def made(seed, batch=4, size=6, tags=3):
    """Returns emissions, tags, masks with gaps (one row is all masked) and scores."""
    rng = np.random.default_rng(seed)
    mask = rng.random((batch, size)) < 0.6
    mask[0], mask[1] = False, True
    scores = Scores(*(rng.normal(size=shape).astype("float32") for shape in ((tags, tags), (tags,), (tags,))))
    return rng.normal(size=(batch, size, tags)).astype("float32"), rng.integers(0, tags, (batch, size)), mask, scores


def paths(emissions, mask, scores):
    """Returns {tags of a path: its score} for all paths of one row."""
    places = np.flatnonzero(mask)
    found = {}
    for tags in itertools.product(range(emissions.shape[1]), repeat=len(places)):
        score = sum(float(emissions[place, tag]) for place, tag in zip(places, tags))
        score += sum(float(scores.transitions[a, b]) for a, b in itertools.pairwise(tags))
        if tags:
            score += float(scores.start[tags[0]] + scores.end[tags[-1]])
        found[tags] = score
    return found


@pytest.mark.parametrize("seed", range(5))
def test_likelihood_and_best_path_equal_every_path_counted_out(seed):
    emissions, tags, mask, scores = made(seed)
    likelihood = np.asarray(crf.log_likelihood(emissions, tags, mask, scores))
    best = np.asarray(crf.best_path(emissions, mask, scores))
    best_scores = np.asarray(crf.path_score(emissions, best, mask, scores))
    for row in range(len(emissions)):
        every = paths(emissions[row], mask[row], scores)
        chain = tuple(tags[row][mask[row]].tolist())
        partition = np.logaddexp.reduce(list(every.values()))
        assert likelihood[row] == pytest.approx(every[chain] - partition, abs=1e-4)
        winner = max(every, key=every.get)
        assert tuple(best[row][mask[row]].tolist()) == winner
        assert best_scores[row] == pytest.approx(every[winner], abs=1e-4)
        assert not best[row][~mask[row]].any()


def test_marginals_equal_every_path_counted_out():
    emissions, _, mask, scores = made(7)
    found = crf.marginals(emissions, mask, scores)
    for row in range(len(emissions)):
        every = paths(emissions[row], mask[row], scores)
        total = np.logaddexp.reduce(list(every.values()))
        wanted = np.zeros(emissions.shape[1:])
        for chain, score in every.items():
            for place, tag in zip(np.flatnonzero(mask[row]), chain):
                wanted[place, tag] += np.exp(score - total)
        np.testing.assert_allclose(np.asarray(found.tags)[row], wanted, atol=1e-5)


def test_gradients_equal_finite_differences():
    emissions, tags, mask, scores = made(3)
    values = [emissions, *scores]

    def likelihood(emissions, *scores):
        return tf.reduce_sum(crf.log_likelihood(emissions, tags, mask, Scores(*scores)))

    def gradients(*values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            total = likelihood(*values)
        return tape.gradient(total, values)

    computed = [
        tf.function(gradients, jit_compile=compiled, autograph=False)(*map(tf.constant, values))
        for compiled in (False, True)
    ]
    for index, of_value in enumerate(zip(*computed)):
        for place in np.ndindex(*values[index].shape):
            moved = []
            for step in (1e-2, -1e-2):
                changed = [value.copy() for value in values]
                changed[index][place] += step
                moved.append(
                    sum(_exact(changed[0][row], tags[row], mask[row], Scores(*changed[1:])) for row in range(4))
                )
            assert [float(gradient.numpy()[place]) for gradient in of_value] == pytest.approx(
                [(moved[0] - moved[1]) / 2e-2] * 2, abs=1e-3
            )


def _exact(emissions, tags, mask, scores):
    every = paths(emissions, mask, scores)
    return every[tuple(tags[mask].tolist())] - np.logaddexp.reduce(list(every.values()))


def test_lengths_that_the_graph_does_not_know_give_the_same():
    emissions, tags, mask, scores = made(2)
    unknown = [
        tf.TensorSpec((None, None, 3)),
        tf.TensorSpec((None, None), tf.int64),
        tf.TensorSpec((None, None), tf.bool),
    ]
    graph = tf.function(
        lambda *row: (crf.log_likelihood(*row, scores), crf.best_path(row[0], row[2], scores)),
        input_signature=unknown,
        autograph=False,
    )
    likelihood, best = graph(emissions, tags, mask)
    np.testing.assert_allclose(likelihood, crf.log_likelihood(emissions, tags, mask, scores), atol=1e-5)
    np.testing.assert_array_equal(best, crf.best_path(emissions, mask, scores))


def test_what_stands_outside_the_chain_counts_for_nothing():
    emissions, tags, mask, scores = made(4)
    other = np.where(mask[:, :, None], emissions, 1e3).astype("float32")
    np.testing.assert_allclose(
        crf.log_likelihood(other, tags, mask, scores), crf.log_likelihood(emissions, tags, mask, scores), atol=1e-4
    )
    np.testing.assert_array_equal(crf.best_path(other, mask, scores), crf.best_path(emissions, mask, scores))


@pytest.mark.parametrize("boundary", [True, False])
def test_the_layer_learns_a_tag_that_must_follow_another(boundary):
    # Emissions say nothing: only transitions can tell that 0 and 1 take turns.
    layer = CRF(2, boundary_scores=boundary, rate=1.0)
    layer.build()
    tags = np.array([[0, 1, 0, 1], [1, 0, 1, 0]])
    emissions, mask = np.zeros((2, 4, 2), "float32"), np.ones((2, 4), bool)
    before = float(tf.reduce_mean(layer(emissions, tags, mask)))

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(layer(emissions, tags, mask))
        for variable, gradient in zip(
            layer.trainable_weights, tape.gradient(loss, [w.value for w in layer.trainable_weights])
        ):
            variable.assign_sub(gradient)

    for _ in range(30):
        step()
    after = float(tf.reduce_mean(layer(emissions, tags, mask)))
    assert before == pytest.approx(-4 * np.log(2), abs=1e-5) and after == pytest.approx(-np.log(2), abs=0.15)


def test_two_chains_of_a_word_each_are_scored_apart():
    # No emissions; e to the scores: transitions 1 2 / 1 1, start 3 1, end 1 5. Alone, a word's tags weigh 3 and 5: 8 in
    # all.
    scores = Scores(
        np.log([[1.0, 2.0], [1.0, 1.0]]).astype("f4"), np.log([3.0, 1.0]).astype("f4"), np.log([1.0, 5.0]).astype("f4")
    )
    emissions, tags, mask = np.zeros((1, 3, 2), "f4"), np.array([[0, 1, 1]]), np.array([[True, False, True]])
    together, apart = (
        float(crf.log_likelihood(emissions, tags, mask, scores, begins)[0])
        for begins in (None, np.array([[False, False, True]]))
    )
    assert together == pytest.approx(np.log(30 / 39), abs=1e-6)  # paths weigh 3, 30, 1, 5
    assert apart == pytest.approx(np.log(3 / 8 * 5 / 8), abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True], ids=["graph", "XLA"])
def test_likelihood_and_gradients_of_a_rows_chains_are_those_of_single_chains(compiled):
    emissions, tags, mask, scores = made(5, batch=4, size=7)
    begins = mask & (np.random.default_rng(6).random(mask.shape) < 0.4)
    numbers = np.cumsum(begins, axis=1)
    values = [tf.constant(part) for part in (emissions, *scores)]

    def several(emissions, *scores):
        return crf.log_likelihood(emissions, tags, mask, Scores(*scores), begins)

    def single(emissions, *scores):
        return tf.add_n(
            [
                crf.log_likelihood(emissions, tags, mask & (numbers == number), Scores(*scores))
                for number in range(numbers.max() + 1)
            ]
        )

    @tf.function(jit_compile=compiled, autograph=False)
    def likelihood_and_gradients(function, *values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            found = function(*values)
        return found, *tape.gradient(found, values)

    assert numbers.max() > 2
    for found, wanted in zip(likelihood_and_gradients(several, *values), likelihood_and_gradients(single, *values)):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def test_a_faster_rate_moves_the_scores_so_many_times_further():
    layer = CRF(2, rate=100.0)
    layer.build()
    layer.transitions.assign([[0.0, 0.02], [0.0, 0.0]])
    np.testing.assert_allclose(layer.scores().transitions, [[0.0, 2.0], [0.0, 0.0]])


def test_constrained_paths_are_legal_even_without_learned_scores():
    labels = ["O", "B-A", "I-A", "B-B", "I-B"]
    rng = np.random.default_rng(0)
    emissions, mask = rng.normal(size=(20, 9, 5)).astype("float32"), np.ones((20, 9), bool)
    scores = crf.constrain(crf.no_scores(5), legal_transitions(labels, "iob2"))
    free, legal = (np.asarray(crf.best_path(emissions, mask, part)) for part in (crf.no_scores(5), scores))
    np.testing.assert_array_equal(free, emissions.argmax(-1))
    for row in legal:
        tags = [labels[tag] for tag in row]
        assert convert_tags(tags, "iob2") == tags


def test_the_layer_saves_and_loads(tmp_path):
    layer = CRF(3)
    layer.build()
    layer.transitions.assign(np.arange(9.0).reshape(3, 3))
    copy = CRF.from_config(layer.get_config())
    copy.build()
    copy.set_weights(layer.get_weights())
    emissions, tags, mask, _ = made(1)
    np.testing.assert_array_equal(layer(emissions, tags, mask), copy(emissions, tags, mask))
    assert isinstance(layer, keras.layers.Layer)
