"""Writes texts word by word, with the settings and the results of transformers' `generate`: greedy, or by beams.

Ties are decided for the lowest beam, and then the lowest id. B texts, K beams, R = B * K rows, V words, L most tokens
of a text with its beginning, P tokens of the beginning, M candidates of a text.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf

from official_bert.fields import Constraint, Count, Natural, check_fields
from official_bert.typed_values import build

NEVER = np.float32(-1e9)  # added to what may not be chosen, as in transformers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """The arguments of transformers' `generate` that are computed here, with its defaults."""

    num_beams: Annotated[int, Constraint("1 to 256", lambda value: 1 <= value <= 256)] = 1
    """Beginnings of a text that are kept at each word; 1: greedy."""
    num_return_sequences: Count = 1
    """Texts for each source, at most num_beams."""
    max_length: Count = 20
    """Most tokens of a text, its start token included."""
    min_length: Natural = 0
    """Tokens, the start token included, before which no text ends."""
    max_new_tokens: Natural = 0
    """Most tokens without the start token, instead of max_length; 0: max_length counts."""
    min_new_tokens: Natural = 0
    """Tokens without the start token before which no text ends."""
    length_penalty: float = 1.0
    """Power of the length by which the sum of a finished beam is divided; above 0, longer texts win more often."""
    early_stopping: bool | Literal["never"] = False
    """true: ends with num_beams finished texts; false: if the best running one is no longer better; never: if it cannot
    become better."""
    no_repeat_ngram_size: Natural = 0
    """Words in a row that a text has only once; 0: no such limit."""
    eos_token_id: tuple[int, ...] = ()
    """Words that end a text; none: the tokenizer's [SEP]."""
    pad_token_id: Natural = 0
    """Padding; beside eos_token_id only."""
    decoder_start_token_id: Natural = 0
    """First token of a text; beside eos_token_id only."""

    def __post_init__(self) -> None:
        check_fields(self, "search.")
        if self.num_return_sequences > self.num_beams:
            raise ValueError(f"search.num_return_sequences: expected at most {self.num_beams}, num_beams")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Search":
        """Returns the search with these arguments, of which None is none. Raises ValueError for others."""
        given = {name: value for name, value in values.items() if value is not None}
        given["eos_token_id"] = np.ravel(given.get("eos_token_id", ())).astype(int).tolist()
        return build(cls, given, "search")

    def last(self, beginning: int) -> int:
        """Returns the most tokens of a text whose beginning has so many."""
        return beginning + self.max_new_tokens if self.max_new_tokens else self.max_length

    def ends(self, words: Any) -> Any:
        """Returns whether each word ends a text."""
        return tf.reduce_any(tf.equal(words[..., None], np.array(self.eos_token_id, np.int32)), axis=-1)

    def allowed(self, scores: Any, state: "State", beginning: int) -> Any:
        """Returns scores [R,V] with -inf for words that repeat an n-gram, and for ends of texts that are too short."""
        size, rows, count = self.no_repeat_ngram_size, flat(state.rows), state.count
        places = rows.shape[1] - size + 1
        if size and places > 0:
            last = tf.gather(rows, tf.maximum(count - size + 1 + tf.range(size - 1), 0), axis=1)  # [R,size-1]
            same = tf.ones_like(rows[:, :places], tf.bool) & (tf.range(places) + size <= count)
            for place in range(size - 1):
                same &= tf.equal(rows[:, place : place + places], last[:, place : place + 1])
            where = tf.stack([tf.where(same)[:, 0], tf.cast(tf.boolean_mask(rows[:, size - 1 :], same), tf.int64)], 1)
            scores = tf.tensor_scatter_nd_update(scores, where, tf.fill(tf.shape(where)[:1], -np.inf))
        if self.min_length or self.min_new_tokens:
            short = (count < self.min_length) | (count - beginning < self.min_new_tokens)
            scores = tf.where(short & self.ends(tf.range(tf.shape(scores)[1])), -np.inf, scores)
        return scores


class State(NamedTuple):
    """A search: running and finished texts. Greedy, running ones end too, and nothing else is used."""

    count: Any  # of tokens []
    rows: Any  # [B,K,L]
    sums: Any  # [B,K]
    texts: Any  # finished ones, best first [B,K,L]
    scores: Any  # [B,K]
    is_finished: Any  # [B,K]
    lengths: Any  # [B,K]
    may_improve: Any  # [B]
    parents: Any  # which row each running text continues [R]
    stops: Any  # []


def flat(rows: Any) -> Any:
    """Returns the rows of all texts: [B,K,L] -> [R,L]."""
    return tf.reshape(rows, (-1, rows.shape[2]))


def put(rows: Any, place: Any, words: Any) -> Any:
    """Returns rows [B,M,L] with words [B,M] at a place."""
    return tf.where(tf.equal(tf.range(rows.shape[2]), place), words[:, :, None], rows)


def greedily(state: State, logits: Any, beginning: int, how: Search) -> State:
    """Returns the texts with the likeliest word more by logits [B,V], or padding behind their ends."""
    allowed = how.allowed(logits, state, beginning)
    largest, words = tf.math.top_k(allowed, 1)  # of equal ones the lowest
    chances = largest - tf.reduce_logsumexp(allowed, axis=1, keepdims=True)
    words = tf.where(state.is_finished, how.pad_token_id, words)
    is_finished, count = state.is_finished | how.ends(words), state.count + 1
    return state._replace(
        count=count,
        rows=put(state.rows, state.count, words),
        sums=state.sums + tf.where(state.is_finished, 0.0, chances),
        is_finished=is_finished,
        stops=tf.reduce_all(is_finished) | (count >= state.rows.shape[2]),
    )


def by_beams(state: State, logits: Any, beginning: int, how: Search) -> State:
    """Returns the best K running and finished texts with a word more by logits [R,V] (transformers' `_beam_search`)."""
    _, many, last = state.rows.shape
    length, B = state.count + 1 - beginning, tf.shape(state.rows)[0]
    logs = how.allowed(tf.nn.log_softmax(logits), state, beginning)
    totals = tf.reshape(tf.reshape(logs, (B, many, -1)) + state.sums[:, :, None], (B, -1))
    totals, places = tf.math.top_k(totals, many * max(2, 1 + len(how.eos_token_id)))  # [B,M]
    parents, words = places // tf.shape(logs)[1], places % tf.shape(logs)[1]
    rows = put(tf.gather(state.rows, parents, batch_dims=1), state.count, words)
    ends = how.ends(words) | (state.count + 1 >= last)  # at the greatest length, all
    sums, chosen = tf.math.top_k(totals + tf.cast(ends, tf.float32) * NEVER, many)

    penalties = tf.constant([1.0, *(float(size) ** how.length_penalty for size in range(1, last))], tf.float32)
    enters = ends & (tf.range(tf.shape(ends)[1]) < many)  # of the best K candidates alone
    barred = [~enters, ~state.may_improve[:, None]]
    if how.early_stopping is True:
        barred.append(tf.reduce_all(state.is_finished, axis=1, keepdims=True))
    values = totals / penalties[length] + sum(tf.cast(bar, tf.float32) * NEVER for bar in barred)
    scores, kept = tf.math.top_k(tf.concat([state.scores, values], axis=1), many)
    texts, is_finished, lengths = (
        tf.gather(tf.concat(pair, axis=1), kept, batch_dims=1)
        for pair in ((state.texts, rows), (state.is_finished, enters), (state.lengths, tf.fill(tf.shape(ends), length)))
    )
    never = how.early_stopping == "never" and how.length_penalty > 0
    best = sums[:, :1] / penalties[last - beginning if never else length]
    worst = tf.where(is_finished, tf.reduce_min(scores, axis=1, keepdims=True), NEVER)
    may_improve = state.may_improve & tf.reduce_any(best > worst, axis=1)
    full = tf.reduce_all(is_finished) if how.early_stopping is True else False
    return State(
        state.count + 1,
        tf.gather(rows, chosen, batch_dims=1),
        sums,
        texts,
        scores,
        is_finished,
        lengths,
        may_improve,
        tf.reshape(tf.gather(parents, chosen, batch_dims=1) + tf.range(B)[:, None] * many, [-1]),
        ~tf.reduce_any(may_improve) | tf.reduce_all(ends) | full,
    )


def write_words(step: Callable, logits: Any, cache: Any, begun: Any, how: Search) -> tuple:
    """Returns the best texts [B,_,L] of each source, best first, their scores, and the length of the longest.

    `begun` [B,P] are the beginnings, `logits` [B,V] those of the word behind them, and `cache` has what was computed
    for them, tensors [B,N,T,H]. `step` (the last words [R,1], the number of tokens, the cache) gives the next logits
    [R,V] and the longer cache. A score is the sum of log-probabilities; of beams, divided by the length. Texts that end
    earlier are filled up with padding, but beams with the end if padding is 0, as in transformers.
    """
    many, beginning, last = how.num_beams, begun.shape[1], how.last(begun.shape[1])
    advance = greedily if many == 1 else by_beams
    fill = how.pad_token_id or (*how.eos_token_id[: many - 1], 0)[0]
    rows = tf.repeat(tf.pad(begun, [[0, 0], [0, last - beginning]], constant_values=fill)[:, None], many, axis=1)
    rows, zeros = tf.ensure_shape(rows, [None, many, last]), tf.zeros_like(rows[:, :, 0])
    never = tf.cast(zeros, tf.float32) + NEVER
    sums = tf.where(tf.equal(tf.range(many), 0), 0.0, never)  # only the first beam of a text counts
    parents, stops = tf.range(tf.size(zeros)), tf.constant(False)
    finished = rows, never, zeros > 0, zeros, tf.equal(zeros[:, 0], 0)
    state = State(tf.constant(beginning), rows, sums, *finished, parents, stops)
    state = advance(state, tf.repeat(tf.cast(logits, tf.float32), many, axis=0), beginning, how)

    def body(state: State, cache: Any) -> tuple[State, Any]:
        if many > 1:
            cache = tf.nest.map_structure(lambda tensor: tf.gather(tensor, state.parents), cache)
        logits, cache = step(tf.gather(flat(state.rows), [state.count - 1], axis=1), state.count, cache)
        return advance(state, tf.cast(logits, tf.float32), beginning, how), cache

    cache = tf.nest.map_structure(lambda tensor: tf.repeat(tensor, many, axis=0), cache)
    shapes = tf.nest.map_structure(lambda x: tf.TensorShape([None, x.shape[1], None, x.shape[3]]), cache)
    loose = State(*(value.shape for value in state))
    state, _ = tf.while_loop(
        lambda state, _: ~state.stops, body, (state, cache), (loose, shapes), parallel_iterations=1
    )
    if many == 1:
        return state.rows, state.sums, state.count
    best = how.num_return_sequences
    return state.texts[:, :best], state.scores[:, :best], beginning + tf.reduce_max(state.lengths[:, :best])


def functions_of(model: Any) -> tuple[Callable, Callable]:
    """Returns the functions that write with an `EncoderDecoder`, traced once for all searches: the pass of sources and
    beginnings, and that of a word more.
    """

    def first(ids: Any, mask: Any, segments: Any, begun: Any) -> tuple:
        memory = model.remember({"input_ids": ids, "input_mask": mask, "segment_ids": segments})
        rows, cache = model.decoder.extend(begun, memory)
        return model.decoder.logits(rows[:, -1:])[:, 0], cache, memory

    def more(words: Any, cache: Any, memory: Any) -> tuple:
        rows, cache = model.decoder.extend(words, memory, cache)
        return model.decoder.logits(rows)[:, 0], cache

    signature = [tf.TensorSpec([None, None], tf.int32)] * 4
    return tf.function(first, autograph=False, input_signature=signature), tf.function(more, autograph=False)


def write_with(functions: tuple[Callable, Callable], begun: Any, how: Search, *inputs: Any) -> tuple:
    """Writes texts for the encoder's inputs, ids, mask and segments [B,S]; see `write_words`."""
    logits, cache, memory = functions[0](*inputs, begun)
    return write_words(lambda words, _, cache: functions[1](words, cache, memory), logits, cache, begun, how)


def check_limits(model: Any, how: Search, beginning: int = 1) -> None:
    """Raises ValueError for lengths and words that the decoder lacks."""
    config, last = model.decoder.config, how.last(beginning)
    most = config.longest_row + 1  # nobody reads the last word
    if not beginning < last <= most:
        expected = f"{beginning + 1} to {most}, one more than the decoder's positions"
        raise ValueError(f"search.max_length: expected {expected}, got {last}")
    if wrong := [
        word
        for word in (how.decoder_start_token_id, how.pad_token_id, *how.eos_token_id)
        if not 0 <= word < config.vocab_size
    ]:
        raise ValueError(f"search: expected tokens below {config.vocab_size}, the decoder's words, got {wrong[0]}")


def search(model: Any, inputs: Mapping[str, Any], **how: Any) -> dict[str, np.ndarray]:
    """Writes texts with an `EncoderDecoder`; returns `sequences` [B*R,T] and `scores` [B*R], see its `generate`."""
    chosen = Search.of(how)
    starts = np.full((len(inputs["input_ids"]), 1), chosen.decoder_start_token_id)
    names = ("input_ids", "input_mask", "segment_ids")
    begun, *rows = (np.asarray(part, np.int32) for part in (inputs.get("target_ids", starts), *map(inputs.get, names)))
    check_limits(model, chosen, beginning := begun.shape[1])
    graphs = vars(model).setdefault("graphs_of_searches", {})  # as in `generation/generate.py`
    functions = graphs.setdefault("functions", functions_of(model))
    if (key := (chosen, beginning)) not in graphs:
        signature = [tf.TensorSpec([None, beginning], tf.int32), *[tf.TensorSpec([None, None], tf.int32)] * 3]
        graph = tf.function(
            lambda begun, *rows: write_with(functions, begun, chosen, *rows),
            autograph=False,
            input_signature=signature,
        )
        graphs[key] = graph.get_concrete_function()
    texts, scores, length = graphs[key](*map(tf.constant, (begun, *rows)))
    texts = texts.numpy()[:, :, : int(length)]
    return {"sequences": texts.reshape(-1, texts.shape[2]), "scores": scores.numpy().reshape(-1)}
