"""A linear-chain conditional random field over tags (Lafferty et al., 2001; for tagging Lample et al., 2016, section
2.2).

B batch, S positions, T tags. A mask [B,S] is true for the positions in the chain (first pieces of words). The others
are skipped: the tags of two consecutive words are neighbours in the chain. `begins` [B,S] is true for the positions of
the mask at which another chain begins, as a document's sentences do; without it, a row is one chain. Scores are
float32.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

# added to the scores of illegal tags: finite, so that a chain without a legal path still has a best one
IMPOSSIBLE = -1e4


class Scores(NamedTuple):
    """The scores of a tag after another tag, at the start and at the end of a chain, which are added to emissions."""

    transitions: Any  # [T,T], from the row's tag to the column's
    start: Any  # [T]
    end: Any  # [T]


def log_likelihood(emissions: Any, tags: Any, mask: Any, scores: Scores, begins: Any = None) -> Any:
    """Returns the log-likelihood of the chains' tags: emissions [B,S,T], tags and mask [B,S] -> [B]; 0 for an empty
    row.
    """
    return path_score(emissions, tags, mask, scores, begins) - log_partition(emissions, mask, scores, begins)


def path_score(emissions: Any, tags: Any, mask: Any, scores: Scores, begins: Any = None) -> Any:
    """Returns the sum of emissions, transitions, start and end scores of the given tags, [B]."""
    emissions, mask, tags = ops.cast(emissions, "float32"), ops.cast(mask, "bool"), ops.cast(tags, "int32")
    tag_scores = ops.take_along_axis(emissions, tags[:, :, None], axis=2)[..., 0]  # [B,S]
    order = chain_first(mask)
    # [B,S], the chain's tags, then the others
    chain = ops.take_along_axis(tags, order, axis=1)
    length = ops.sum(ops.cast(mask, "int32"), axis=1, keepdims=True)  # [B,1]
    pairs = chain[:, :-1] * scores.transitions.shape[1] + chain[:, 1:]
    between = ops.take(ops.reshape(scores.transitions, (-1,)), pairs)  # [B,S-1]
    if begins is not None:
        anew = ops.take_along_axis(ops.cast(begins, "bool"), order, axis=1)[:, 1:]
        between = ops.where(anew, ops.take(scores.end, chain[:, :-1]) + ops.take(scores.start, chain[:, 1:]), between)
    inside = ops.cast(ops.arange(1, ops.shape(tags)[1]), "int32")[None] < length
    last = ops.take_along_axis(chain, ops.maximum(length - 1, 0), axis=1)[:, 0]
    ends = ops.take(scores.start, chain[:, 0]) + ops.take(scores.end, last)
    return (
        ops.sum(ops.where(mask, tag_scores, 0.0), axis=1)
        + ops.sum(ops.where(inside, between, 0.0), axis=1)
        + ops.where(length[:, 0] > 0, ends, 0.0)
    )


def chain_first(mask: Any) -> Any:
    """Returns the positions of the chain in order, followed by the others, int32 [B,S]."""
    size = ops.shape(mask)[1]
    places = ops.cast(ops.arange(size), "int32")[None]
    return ops.cast(ops.argsort(ops.where(mask, places, places + size), axis=1), "int32")


class Marginals(NamedTuple):
    """The tag probabilities, the expected counts of transitions, and the log partition function of a row."""

    log_partition: object  # [B], 0 for a row without a position
    tags: object  # [B,S,T], 0 outside the chain
    transitions: object  # [B,T,T], expected counts
    start: object  # [B,T], expected counts over the row's chains
    end: object  # [B,T]


def marginals(emissions: Any, mask: Any, scores: Scores, begins: Any = None) -> Marginals:
    """Returns the marginals, computed by the forward and the backward algorithm."""

    def anew(emission: Any, after: Any) -> Any:
        """Of ending a chain in each tag and beginning another one here: [...,T]."""
        return scores.end + ops.logsumexp(scores.start + emission + after, axis=-1, keepdims=True)

    def backward_step(after: Any, row: Any) -> Any:
        emission, is_inside, opens = _unpack(row, 2)
        reached = ops.logsumexp(scores.transitions + (emission + after)[:, None, :], axis=2)
        return ops.where(is_inside, ops.where(opens, anew(emission, after), reached), after), after

    rows = _pack(emissions, mask, begins)
    reached = _forward(rows, scores, ops.logsumexp)  # [S+1,B,T+1]
    final, any_here = _unpack(reached[-1])
    before, begun = _unpack(reached[:-1])  # [S,B,T], [S,B,1]
    emission, is_inside, opens = _unpack(rows, 2)
    opens = ops.logical_or(opens, ops.logical_not(begun))
    _, after = ops.scan(backward_step, ops.zeros_like(final) + scores.end, rows, reverse=True)  # [B,T], [S,B,T]
    total = ops.where(any_here[:, 0], ops.logsumexp(final + scores.end, axis=1), 0.0)

    def probability(logarithm: Any, possible: Any) -> Any:
        return ops.exp(ops.where(possible, logarithm, IMPOSSIBLE))

    tags = probability(reached[1:, :, :-1] + after - total[:, None], is_inside)
    pairs = before[:, :, :, None] + scores.transitions + (emission + after - total[:, None])[:, :, None, :]  # [S,B,T,T]
    pairs = probability(pairs, ops.logical_and(is_inside, ops.logical_not(opens))[..., None])
    start = ops.where(ops.logical_and(is_inside, opens), tags, 0.0)
    ends = probability(
        before + anew(emission, after) - total[:, None], ops.logical_and(is_inside, ops.logical_and(opens, begun))
    )
    return Marginals(
        total,
        ops.transpose(tags, (1, 0, 2)),
        ops.sum(pairs, axis=0),
        ops.sum(start, axis=0),
        probability(final + scores.end - total[:, None], any_here) + ops.sum(ends, axis=0),
    )


def log_partition(emissions: Any, mask: Any, scores: Scores, begins: Any = None) -> Any:
    """Returns the logarithm of the sum over all paths of exp(path score), [B]; 0 for an empty row.

    Its gradients are the marginals, written here by hand: Keras' scan has no gradient under XLA.
    """
    fixed = Scores(*map(ops.stop_gradient, scores))
    shares = Marginals(*map(ops.stop_gradient, marginals(ops.stop_gradient(emissions), mask, fixed, begins)))
    expected = (
        ops.sum(shares.tags * ops.cast(emissions, "float32"), axis=(1, 2))
        + ops.sum(shares.transitions * scores.transitions, axis=(1, 2))  # type: ignore[operator]
        + ops.sum(shares.start * scores.start, axis=1)  # type: ignore[operator]
        + ops.sum(shares.end * scores.end, axis=1)  # type: ignore[operator]
    )
    return shares.log_partition + expected - ops.stop_gradient(expected)


def best_path(emissions: Any, mask: Any, scores: Scores) -> Any:
    """Returns the highest-scoring tags of each row's chain by the Viterbi algorithm, int32 [B,S], 0 outside the chain.

    Among equally good paths, it chooses the one whose last tags have the lowest numbers.
    """
    rows = _pack(emissions, mask)
    reached = _forward(rows, scores, ops.max)  # [S+1,B,T+1]
    final, _ = _unpack(reached[-1])

    def backward_step(tag: Any, row: Any) -> Any:
        best, is_inside = _unpack(row)
        # [B,T], from every tag into this one
        into = ops.take(ops.transpose(scores.transitions), tag, axis=0)
        previous = ops.cast(ops.argmax(best + into, axis=1), "int32")
        return ops.where(is_inside[:, 0], previous, tag), ops.where(is_inside[:, 0], tag, 0)

    tag = ops.cast(ops.argmax(final + scores.end, axis=1), "int32")
    # [S,B,T+1], scores before each position
    before = ops.concatenate([reached[:-1, :, :-1], rows[:, :, -2:-1]], axis=2)
    _, tags = ops.scan(backward_step, tag, before, reverse=True)
    return ops.transpose(tags)


def _forward(rows: Any, scores: Scores, combine: Any) -> Any:
    """Scores of the tags before the first position and after each, then whether a chain has begun.

    rows [S,B,T+2] -> [S+1,B,T+1].
    """

    def step(carry: Any, row: Any) -> Any:
        carry = _advance(carry, row, scores, combine)
        return carry, carry

    first = ops.zeros_like(rows[0, :, :-1])
    return ops.concatenate([first[None], ops.scan(step, first, rows)[1]], axis=0)


def _advance(carry: Any, row: Any, scores: Scores, combine: Any) -> Any:
    """Scores of the tags at the next position, by `combine` over the tags before it. Carry [B,T+1], row [B,T+2]."""
    (before, begun), (emission, is_inside, opens) = _unpack(carry), _unpack(row, 2)
    anew = scores.start + ops.where(begun, combine(before + scores.end, axis=1)[:, None], 0.0)
    inside = ops.logical_and(begun, ops.logical_not(opens))
    reached = emission + ops.where(inside, combine(before[:, :, None] + scores.transitions, axis=1), anew)
    begun = ops.cast(ops.logical_or(begun, is_inside), "float32")
    return ops.concatenate([ops.where(is_inside, reached, before), begun], axis=1)


def _pack(values: Any, mask: Any, begins: Any = None) -> Any:
    """Appends the mask and the beginnings of chains to the values: [S,B,T+2].

    Keras' scan on TensorFlow takes several arrays only if S is static, and returns only arrays shaped like the carry.
    """
    flags = [
        ops.cast(mask, "float32"),
        ops.zeros_like(mask, "float32") if begins is None else ops.cast(begins, "float32"),
    ]
    packed = ops.concatenate([ops.cast(values, "float32"), *(flag[:, :, None] for flag in flags)], axis=2)
    return ops.transpose(packed, (1, 0, 2))


def _unpack(row: Any, flags: int = 1) -> Any:
    """Parts [...,T+flags] into values [...,T] and truth values [...,1]."""
    size = row.shape[-1] - flags
    return (row[..., :size], *(row[..., place : place + 1] > 0 for place in range(size, size + flags)))


def constrain(scores: Scores, legal: Any) -> Scores:
    """Returns the scores with `IMPOSSIBLE` added wherever `legal`, bool ([T,T], [T], [T]), is false."""
    return Scores(*(score + ops.where(allowed, 0.0, IMPOSSIBLE) for score, allowed in zip(scores, legal)))


def no_scores(num_tags: int) -> Scores:
    """Returns scores of 0; with `constrain`, they restrict a softmax to legal tags."""
    return Scores(ops.zeros((num_tags, num_tags)), ops.zeros((num_tags,)), ops.zeros((num_tags,)))


@keras.saving.register_keras_serializable("official_bert")
class CRF(keras.layers.Layer):
    """The trained scores of a chain; `boundary_scores` adds those of the first and the last tag.

    The scores learn `rate` times faster than the optimizer's learning rate, which suits the encoder: at 5e-5 they would
    hardly change in some thousand steps.
    """

    def __init__(self, num_tags: int = 9, boundary_scores: bool = True, rate: float = 100.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_tags, self.boundary_scores, self.rate = num_tags, boundary_scores, rate

    def build(self, *_: Any) -> None:
        """Makes the scores, all 0."""
        tags = self.num_tags
        self.transitions = self.add_weight(shape=(tags, tags), initializer="zeros", name="transitions", dtype="float32")
        if self.boundary_scores:
            self.start_scores = self.add_weight(
                shape=(tags,), initializer="zeros", name="start_scores", dtype="float32"
            )
            self.end_scores = self.add_weight(shape=(tags,), initializer="zeros", name="end_scores", dtype="float32")
        self.built = True

    def scores(self) -> Scores:
        """Returns the weights as `Scores`; boundary scores are 0 if there are none."""
        transitions = ops.convert_to_tensor(self.transitions) * self.rate
        if not self.boundary_scores:
            return no_scores(self.num_tags)._replace(transitions=transitions)
        ends = (ops.convert_to_tensor(part) * self.rate for part in (self.start_scores, self.end_scores))
        return Scores(transitions, *ends)

    def call(self, emissions: Any, tags: Any, mask: Any) -> Any:
        """Returns the log-likelihood of each chain [B] for emissions [B,S,T], tags and mask [B,S]."""
        return log_likelihood(emissions, tags, mask, self.scores())

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "num_tags": self.num_tags,
            "boundary_scores": self.boundary_scores,
            "rate": self.rate,
        }
