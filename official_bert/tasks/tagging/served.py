"""Named entities with their places in a text: words, windows, tags by softmax or CRF, IOB to entities.

B texts, R rows (a text longer than the model has several windows), S tokens of a row, T tokens in all, W words, C tags.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.data.tagged import chunk_tags
from official_bert.data.tagged.column_files import SPACES
from official_bert.layers.relatives import crf
from official_bert.serving.bounds import in_groups
from official_bert.serving.served_model import ServedModel, ServingOptions, Tensors, lengthened
from official_bert.serving.served_windows import ServedWindows
from official_bert.serving.task_serving import Serving
from official_bert.tasks.tagging.features import by_text
from official_bert.tasks.tagging.redaction import Redaction
from official_bert.tasks.tagging.word_tagger import CHAIN
from official_bert.tasks.task import TaskBase
from official_bert.text import graph_packing
from official_bert.text.graph_loading import AnyGraphTokenizer
from official_bert.text.graph_subwords import GraphSubwords
from official_bert.text.tokenization import CJK_RANGES

PLACES = "OIBES"  # of words in entities, as `split_tag` gives them
OUTSIDE, INSIDE, BEGIN, END, SINGLE = range(5)
CONTINUED = "(that of the word before)"  # type of a letter alone beside others with types
WHITE_SPACE = r"[\s\v\p{Z}\x{85}]"  # between the words of a text
# logits [B,W,C], which of the W are real [B,W] -> the best tag of each word [B,W]; W is at least 1
Decode = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class Words(NamedTuple):
    """The words of texts, flat over the batch, and the tokens that they consist of."""

    ids: tf.RaggedTensor  # [B,(T)]
    first_tokens: tf.Tensor  # [W]
    starts: tf.Tensor  # [W] code points of the text
    ends: tf.Tensor  # [W]
    rows: tf.Tensor  # [W] their texts


class Entities(NamedTuple):
    """Runs of words that are one entity, flat over the batch, each [N] and in the order of the texts."""

    first: tf.Tensor  # word
    last: tf.Tensor
    kind: tf.Tensor  # index of the type


class ServedTagger(ServedWindows):
    """Finds the entities of texts. `decode` finds the tags of a sequence of words; None takes the likeliest of each.

    `plain`: each word is an entity, its tag the type. `lines`: texts are documents, each line a sentence, at whose end
    tags and entities end; else a text is one sentence, whatever its lines. `pretokenized`: words stand between spaces,
    tabs and line ends alone, as in CoNLL files; else punctuation around a word is set apart.
    """

    padded_text: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("entities", "types", "starts", "ends", "scores"), "num_entities"
    )
    outputs: ClassVar[tuple[str, ...]] = (*padded_text, "num_entities", "truncated")
    padded_ids = dict.fromkeys(("tags", "logits"), "input_ids")
    reads = ("pretokenized", "redact", *ServedWindows.reads)

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        *,
        labels: Sequence[str],
        decode: Decode | None = None,
        pretokenized: bool = False,
        plain: bool = False,
        lines: bool = False,
        redact: bool = False,
        **windows: int,
    ):
        super().__init__(model, tokenizer, max_seq_length, **windows)
        self.labels, self.pretokenized, self.plain, self.lines = tuple(labels), pretokenized, plain, lines
        if decode:
            self.why_not_dense = (
                "its tags are the best path through a text (options.crf, options.constrain), found word by word"
            )
        self.decode = decode or (lambda logits, real: tf.argmax(logits, axis=-1, output_type=tf.int32))
        # Published taggers may have types without prefixes: O, PER, LOC. Beside prefixes, such labels (X, [PAD]) mean
        # nothing.
        self._nothing = {*chunk_tags.meaningless(labels)}
        self._prefixed = any(map(chunk_tags.has_prefix, labels))
        tags = [self._split(label) for label in labels]
        self.types = sorted({kind for place, kind in tags if place != OUTSIDE and kind != CONTINUED})
        numbers = {kind: number for number, kind in enumerate([*self.types, "", CONTINUED])}
        self._places = np.array([place for place, _ in tags], np.int32)  # of each label
        self._kinds = np.array([numbers[kind] for _, kind in tags], np.int32)
        self._pieces_of_text = isinstance(tokenizer, GraphSubwords)  # which spaces and punctuation divide, not pieces
        # Pieces of byte-level BPE tell whether a space stands before them. In training, one stands before each word.
        self.space = " " * (tokenizer.host.kind == "byte_bpe")
        # [V], true for tokens that begin no word; the model may have more rows than the tokenizer has tokens
        self._continues = np.zeros(self.encoder.config.vocab_size, bool)
        self._continues[: len(tokenizer.host.continues_word)] = tokenizer.host.continues_word
        self._continues[[self.special[name] for name in ("PAD", "CLS", "SEP")]] = True

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `logits` [B,S,C], and `tags` [B,S] at pieces that begin words (here all without ##), "" elsewhere."""
        ids = inputs["input_ids"]
        begins = ~tf.gather(self._continues, ids) & tf.cast(inputs["input_mask"], tf.bool)
        logits = self.run(
            {**inputs, "begins": begins},
            {"logits": tf.TensorSpec([None, None, len(self.labels)])},
            lambda rows, _: lengthened({"logits": self._tag_rows(rows)}, tf.shape(ids)[1]),
        )["logits"]
        lengths = tf.reduce_sum(tf.cast(begins, tf.int32), axis=1)
        tags = self._tags(tf.boolean_mask(logits, begins), lengths)
        names = tf.scatter_nd(tf.where(begins), tf.gather(tf.constant(self.labels), tags), tf.shape(ids, tf.int64))
        return {"tags": names, "logits": logits}

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `entities`, `types`, `starts`, `ends`, `scores` [B,E], padded with "" and 0 beyond `num_entities`
        [B]; `truncated` [B], always false.

        `entities` are slices of `text`, in code points; a score is the mean over an entity's words of their tag's
        probability (in a CRF, of the emissions alone).
        """
        text = tf.strings.unicode_transcode(inputs["text"], "UTF-8", "UTF-8")
        words = self._spaced_words(text) if self.pretokenized else self._words(text)
        lengths = tf.math.bincount(words.rows, minlength=tf.size(text), maxlength=tf.size(text))
        logits = self._word_logits(words, lengths)  # [W,C]
        sentences = self._sentence_lengths(text, words) if self.lines else lengths
        tags = self._tags(logits, sentences)  # [W]
        probability = tf.gather(tf.nn.softmax(self.calibration.cooled(logits)), tags, batch_dims=1)
        entities = self._entities(tags, tf.concat([[0], tf.cumsum(sentences)], 0))
        row = tf.gather(words.rows, entities.first)
        start, end = tf.gather(words.starts, entities.first), tf.gather(words.ends, entities.last)
        columns = {
            "entities": tf.strings.substr(tf.gather(text, row), start, end - start, unit="UTF8_CHAR"),
            "types": tf.gather(tf.constant([*self.types, ""]), entities.kind),
            "starts": start,
            "ends": end,
            "scores": _mean_of_runs(probability, entities.first, entities.last),
        }
        counts = tf.math.bincount(row, minlength=tf.size(text), maxlength=tf.size(text))
        rows = {
            name: tf.RaggedTensor.from_row_lengths(value, counts, validate=False).to_tensor()
            for name, value in columns.items()
        }
        return {**rows, "num_entities": counts, "truncated": tf.zeros(tf.shape(text), tf.bool)}

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the entities with their types, places and probabilities."""
        entities = zip(answer["types"], answer["entities"], answer["starts"], answer["ends"], answer["scores"])
        return [
            f"  {kind}  {entity}  [{start}:{end}]  ({score:.3f})"
            for kind, entity, start, end, score in entities
            if kind
        ] or ["  (no entity)"]

    def _words(self, text: tf.Tensor) -> Words:
        """Returns the words of texts, with punctuation around them set apart."""
        ids, starts, ends = self._tokenize(text)
        first = tf.cast(tf.where(self._begins_word(text, ids, starts, ends.values))[:, 0], tf.int32)
        last = tf.concat([first[1:], [tf.size(ids.values)]], 0)[: tf.size(first)] - 1
        rows = tf.gather(tf.cast(ids.value_rowids(), tf.int32), first)
        return Words(ids, first, tf.gather(starts.values, first), tf.gather(ends.values, last), rows)

    def _tokenize(self, text: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the tokens of texts with their starts and ends, each [B,(T)].

        In training every word stands behind a space. So whatever divides words becomes a space here, and pieces of
        further spaces, which byte-level BPE has, are left out.
        """
        if self.tokenizer.host.kind == "wordpiece":
            return self.tokenizer.tokenize_with_offsets(text)
        text = tf.strings.regex_replace(text, f"[{SPACES}]" if self.pretokenized else WHITE_SPACE, " ")
        text = tf.strings.join([self.space, text])
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(text)
        codes, place = _characters(tf.strings.join([text, " "]), ids.value_rowids(), starts.values)
        kept = ids.with_values(tf.not_equal(tf.gather(codes, place), ord(" ")))
        added = len(self.space)
        return tuple(tf.ragged.boolean_mask(part, kept) for part in (ids, starts - added, ends - added))

    def _spaced_words(self, text: tf.Tensor) -> Words:
        """Returns the words between spaces, tabs and line ends.

        As in training, each is tokenized by itself, and one that normalises to nothing is an [UNK].
        """
        parts = tf.strings.split(tf.strings.regex_replace(text, f"[{SPACES}]", " "), " ")  # "" between two spaces
        sizes, rows = tf.strings.length(parts.values, unit="UTF8_CHAR"), tf.cast(parts.value_rowids(), tf.int32)
        before = tf.cumsum(sizes + 1, exclusive=True)
        first = before - tf.gather(tf.gather(before, parts.row_starts()), rows)
        words, sizes, rows, first = (
            tf.boolean_mask(column, sizes > 0) for column in (parts.values, sizes, rows, first)
        )
        tokens, added = self.tokenizer.tokenize_with_offsets(tf.strings.join([self.space, words])), len(self.space)
        unknown = (tf.fill(tf.shape(sizes), self.special["UNK"]), tf.zeros_like(sizes), sizes + added)
        is_empty = tf.equal(tokens[0].row_lengths(), 0)[:, None]
        ids, starts, ends = (
            tf.concat([column, tf.ragged.boolean_mask(one[:, None], is_empty)], 1)
            for column, one in zip(tokens, unknown)
        )  # [W,(T)]
        counts = tf.math.unsorted_segment_sum(ids.row_lengths(), rows, tf.size(text))
        return Words(
            tf.RaggedTensor.from_row_lengths(ids.values, counts, validate=False),
            tf.cast(ids.row_starts(), tf.int32),
            first + tf.maximum(tf.gather(starts.values, ids.row_starts()) - added, 0),
            first + tf.gather(ends.values, ids.row_limits() - 1) - added,
            rows,
        )

    def _begins_word(
        self, text: tf.Tensor, ids: tf.RaggedTensor, starts: tf.RaggedTensor, ends: tf.Tensor
    ) -> tf.Tensor:
        """Returns whether each token [T] is the first of a word.

        Tokens without a space between them are one word, from the first to the last that is no punctuation; an
        ideograph is a word of its own. Tokens of one character, such as those of ½, overlap and are never parted.
        """
        same_text = tf.equal(ids.value_rowids()[1:], ids.value_rowids()[:-1])
        joined, overlap = same_text & (starts.values[1:] <= ends[:-1]), same_text & (starts.values[1:] < ends[:-1])
        ideograph, punctuation = self._characters_at(text, starts)
        if self._pieces_of_text:
            # A piece of a space alone belongs to the piece behind it, and is no word without one.
            blank = tf.equal(starts.values, ends)
            with_next = tf.concat([joined, [False]], 0)[: tf.size(blank)]
            is_first = (~blank | with_next) & _with_first(~(blank[:-1] & joined), blank)
            ideograph &= is_first
            begins = is_first & _with_first(~joined | ~overlap & (punctuation[1:] | punctuation[:-1]), blank)
        else:
            begins = ~tf.gather(self._continues, ids.values)
        chunk_start = begins & _with_first(~joined, begins)
        chunk_start |= ideograph | _with_first(ideograph[:-1] & begins[1:], begins)
        chunk = tf.cumsum(tf.cast(chunk_start, tf.int32)) - 1
        place = tf.range(tf.size(chunk))
        count = tf.math.count_nonzero(chunk_start, dtype=tf.int32)
        first = tf.math.unsorted_segment_min(tf.where(punctuation, tf.int32.max, place), chunk, count)
        last = tf.math.unsorted_segment_max(tf.where(punctuation, -1, place), chunk, count)
        return begins & ((place <= tf.gather(first, chunk)) | (place > tf.gather(last, chunk)))

    def _characters_at(self, text: tf.Tensor, starts: tf.RaggedTensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns whether the character at each start [B,(T)] is an ideograph, and is punctuation; both [T]."""
        codes, place = _characters(text, starts.value_rowids(), starts.values)
        codes = tf.gather(tf.concat([codes, [0]], 0), place)
        ideograph = tf.reduce_any([(codes >= first) & (codes <= last) for first, last in CJK_RANGES], axis=0)
        return ideograph, self.tokenizer.stands_alone(codes) & ~ideograph

    def _tag_rows(self, rows: Tensors) -> tf.Tensor:
        """Returns the logits [R,S,C] of rows whose words begin at `begins` [R,S]; here every piece is tagged."""
        return self.run_model(rows)["logits"]

    def _word_logits(self, words: Words, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the logits [W,C] of words, of which a text has `lengths` [B]."""
        del lengths  # each word is tagged by itself
        return self._of_words(words, self._tag_rows, [len(self.labels)])

    def _of_words(self, words: Words, compute: Callable[[Tensors], tf.Tensor], shape: Sequence[int]) -> tf.Tensor:
        """Returns the results [W,*shape] of `compute` [R,S,*shape] at each word's first token, in its window with the
        most context.

        A group of windows keeps the results of first tokens alone.
        """
        tokens = graph_packing.whole(words.ids)
        windows = self.make_windows("text", tokens.length, self.max_seq_length - 2)
        rows = graph_packing.Slices(
            tokens.values, tf.gather(tokens.start, windows.text) + windows.start, windows.length
        )
        layout = graph_packing.lay_out(rows, None, self.template)
        shown = tf.pad(graph_packing.max_context(windows, tokens.length), [[0, 0], [1, 1]]) & layout.in_a  # [R,S]
        count = tf.size(words.first_tokens)
        # 0: no word begins there
        word = tf.scatter_nd(words.first_tokens[:, None], tf.range(count) + 1, [tf.size(words.ids.values) + 1])
        word = tf.where(shown, tf.gather(word, layout.token), 0)
        of_words, order = self.run_groups(
            {**layout.features(), "begins": word > 0},
            {"values": tf.TensorSpec([None, *shape])},
            lambda rows, _: {"values": tf.cast(tf.boolean_mask(compute(rows), rows["begins"]), tf.float32)},
        )
        word = tf.gather(word, order)
        return tf.scatter_nd(tf.boolean_mask(word, word > 0)[:, None] - 1, of_words["values"], [count, *shape])

    def _tags(self, logits: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the best tag of each word [W], given flat logits [W,C], `lengths` [B] of them a text."""
        padded, real = by_text(logits, lengths)
        return tf.boolean_mask(tf.cast(self.decode(padded, real), tf.int32), real)

    @staticmethod
    def _sentence_lengths(text: tf.Tensor, words: Words) -> tf.Tensor:
        """Returns the number of words of each line with words, and a last 0."""
        codes, place = _characters(text, words.rows, words.starts)
        ends_before = tf.cumsum(tf.cast(tf.equal(codes, ord("\n")), tf.int32))
        lines = tf.gather(ends_before, place) + words.rows  # numbers that rise from line to line and from text to text
        return tf.concat([tf.unique_with_counts(lines).count, [0]], 0)

    def _entities(self, tags: tf.Tensor, splits: tf.Tensor) -> Entities:
        """Returns the entities of tags [W], read as conlleval reads them: any scheme of B, I, E, S and O, legal or not.

        `splits` are the words at which a sentence begins, and the number of words.
        """
        place, kind = tf.gather(self._places, tags), tf.gather(self._kinds, tags)
        new_text = tf.scatter_nd(splits[:-1, None], tf.ones_like(splits[:-1]), [tf.size(tags) + 1])[:-1] > 0
        if self._kinds.max() > len(self.types):
            place, kind = self._with_types(place, kind, new_text)
        inside = tf.not_equal(place, OUTSIDE)
        closes, opens = (tf.gather([name in names for name in PLACES], place) for names in ("OES", "BS"))
        # An entity begins at B and S, behind O, E and S, and where the type changes.
        changes = _with_first(closes[:-1] | tf.not_equal(kind[1:], kind[:-1]), kind)
        begins = inside & (new_text | changes | opens)
        first = tf.cast(tf.where(begins)[:, 0], tf.int32)
        number = tf.cumsum(tf.cast(begins, tf.int32))
        length = tf.unique_with_counts(tf.boolean_mask(number, inside)).count
        return Entities(first, first + length - 1, tf.gather(kind, first))

    def _with_types(self, place: tf.Tensor, kind: tf.Tensor, new_text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Gives words whose label is a letter alone the type of the word before, and O to those that continue nothing;
        both [W].
        """
        none = len(self.types)
        alone = tf.greater(kind, none)
        closes = tf.equal(place, END) | tf.equal(place, SINGLE)
        is_first = ~alone | new_text | _with_first(closes[:-1], kind)
        types_of_runs = tf.boolean_mask(tf.where(alone, none, kind), is_first)
        kind = tf.gather(types_of_runs, tf.cumsum(tf.cast(is_first, tf.int32)) - 1)
        return tf.where(alone & tf.equal(kind, none), OUTSIDE, place), kind

    def _split(self, label: str) -> tuple[int, str]:
        """Returns the place of a label's words in entities, as a number, and its type."""
        if self.plain:
            return SINGLE, label
        place, kind = chunk_tags.split_tag(label) if label not in self._nothing else (chunk_tags.OUTSIDE, "")
        if place == chunk_tags.OUTSIDE:
            return OUTSIDE, ""
        return PLACES.index(place), kind or (CONTINUED if self._prefixed else chunk_tags.UNNAMED)


class ServedFeatureTagger(ServedTagger):
    """Does the same with a feature-based model: a frozen encoder's layers of a whole text's words go through the BiLSTM
    together.
    """

    why_not_dense = "a BiLSTM reads the words of a whole text (options.features), not rows of ids"

    def _tag_rows(self, rows: Tensors) -> tf.Tensor:
        return self.run_model(rows, first_pieces=tf.cast(rows["begins"], tf.int32))["logits"]

    def _word_logits(self, words: Words, lengths: tf.Tensor) -> tf.Tensor:
        shape = [len(self.model.layers_used), self.model.encoder.config.hidden_size]
        features = self._of_words(words, self.model.features, shape)  # [W,N,D], N layers of D numbers
        features = tf.RaggedTensor.from_row_lengths(features, lengths, validate=False)

        def tag(texts: tf.Tensor) -> dict[str, tf.Tensor]:
            padded, real = by_text(tf.gather(features, texts).values, tf.gather(lengths, texts))
            return {"logits": tf.boolean_mask(self.model.tag(padded, real), real)}

        results = {"logits": tf.TensorSpec([None, len(self.labels)])}
        tagged, order = in_groups(tag, lengths, self.tokens_at_once, results)
        logits = tf.RaggedTensor.from_row_lengths(tagged["logits"], tf.gather(lengths, order), validate=False)
        return tf.gather(logits, tf.math.invert_permutation(order)).values


class ServedRedactor(Redaction, ServedTagger):
    """Replaces the entities of texts."""


class ServedFeatureRedactor(Redaction, ServedFeatureTagger):
    """Does the same with a feature-based model."""


def decoder(task: TaskBase, model: keras.Model) -> Decode | None:
    """Returns the best path by the scores of a tagging task's CRF, of legal tags, or both; None: each word's likeliest
    tag.
    """
    if not (task.options.crf or task.options.constrain):
        return None

    def decode(logits: tf.Tensor, real: tf.Tensor) -> tf.Tensor:
        chain = zip(CHAIN, model.crf.scores()) if task.options.crf else ()
        return crf.best_path(logits, real, task.answers.scores({"logits": logits, **dict(chain)}))

    return decode


def _characters(text: tf.Tensor, rows: tf.Tensor, places: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the code points of all texts, and where among them the `places` [N] of the texts `rows` [N] are."""
    decoded = tf.strings.unicode_decode(text, "UTF-8")
    return decoded.values, tf.gather(tf.cast(decoded.row_starts(), tf.int32), rows) + places


def _mean_of_runs(values: tf.Tensor, first: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Returns the means of values [W] from `first` to `last` [N], each summed by itself, so that no run depends on
    another.
    """
    return tf.reduce_mean(tf.gather(values, tf.ragged.range(first, last + 1)), axis=1)


def _with_first(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns true for the first of `like` [N] and `values` [N-1] for the others; [N]."""
    return tf.concat([[True], values], 0)[: tf.size(like)]


def _make(task: TaskBase, model: keras.Model, options: ServingOptions) -> ServedModel:
    labels, plain = task.options.labels, task.options.scheme == "plain"
    if chunk_tags.scheme_of(labels, task.options.scheme) != "plain":
        for remark in chunk_tags.remarks(labels):
            logging.warning("%s", remark)
    kinds = (ServedFeatureTagger, ServedFeatureRedactor) if task.options.features else (ServedTagger, ServedRedactor)
    return kinds[bool(options.redact)].make(
        task,
        model,
        options,
        labels=labels,
        decode=decoder(task, model),
        doc_stride=task.options.doc_stride,
        plain=plain,
        lines=task.options.document_context,
    )


TAGS = Serving((ServedTagger, ServedRedactor), _make)
