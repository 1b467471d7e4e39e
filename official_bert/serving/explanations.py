"""Explains an answer by integrated gradients (Sundararajan et al. 2017): how much each word adds to a logit.

The word embeddings move on a straight line from a baseline, in which every word is [MASK], to those of the text.
Segments, positions and special tokens stay fixed. The gradients along this path are integrated by Gauss-Legendre
quadrature, as in captum, and multiplied by the whole distance. So the shares add up to the logit of the text minus that
of the baseline, up to the error of the integral.

T pieces (tokens of all inputs), S tokens of a row, N points of a path, E width of the word table.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.layers.speed.extension_points import original, overridden
from official_bert.serving.served_model import ServedModel, Tensors
from official_bert.text.graph_packing import pack_batch
from official_bert.text.packing import is_max_context, keep, sliding_windows, truncate_pair

MASK = "[MASK]"  # of WordPiece, which cuts it in three; other tokenizers find their own
TOKENS_AT_ONCE = 2048  # the gradient of a base model keeps about 1 MB a token
MOST_GAP = 0.01  # above which more steps are advised
ENDS = (1.0, 0.0)  # of the path: the text, and the baseline
# The logit [N] of a model's outputs, by an output of the answer that tells what the model gives. Its two numbers are
# places in the row (of the word that is tagged; of an answer's start and end), or those of a tag, a word or a label.
LOGITS: Mapping[str, Callable[..., tf.Tensor]] = {
    "entities": lambda outputs, place, tag: outputs["logits"][:, place, tag],
    "start": lambda outputs, start, end: outputs["start_logits"][:, start] + outputs["end_logits"][:, end],
    "tokens": lambda outputs, place, word: outputs["logits"][:, 0, word],
    "logits": lambda outputs, none, label: outputs["logits"][:, label],
    "score": lambda outputs, *none: tf.reshape([*outputs.values()], [-1]),
}


class Explainer:
    """Explains the answers of a served model.

    `path` is the model's path in messages. Raises ValueError for an exported model, and for a model without an output
    in `LOGITS`.
    """

    def __init__(self, served: Any, path: str):
        if not isinstance(served, ServedModel) or served.engine:
            raise ValueError(
                f"explain: expected a training run's folder or a checkpoint, got {path}, an exported model, which has "
                "no gradients; give the run or the checkpoint from which it was exported"
            )
        self.kind = next((name for name in LOGITS if name in served.outputs), "")
        # neither a written answer, nor a BiLSTM, which reads the features of a whole text
        if not self.kind or "passes" in served.outputs or hasattr(served.model, "layers_used"):
            raise ValueError(f"explain: expected a model of {', '.join(LOGITS)}, got {', '.join(served.outputs)}")
        self.served, self.labels = served, list(served.labels)
        specs = [tf.TensorSpec([None], dtype) for dtype in (*[tf.int32] * 4, *[tf.float32] * 2)]
        # traced once, for rows of all lengths
        self.gradients = tf.function(self._gradients, specs, autograph=False)
        self.ends = tf.function(
            lambda ids, segments, pieces, at: self._logits(ids, segments, pieces, at, tf.constant(ENDS))[0],
            specs[:4],
            autograph=False,
        )

    def explain_all(
        self,
        rows: Sequence[Mapping[str, str]],
        answers: Sequence[Mapping[str, Any]],
        steps: int,
        of: str,
        first: int = 1,
    ) -> list[dict[str, Any]]:
        """Returns the explanations of the answers to rows. Errors number the rows from `first`."""
        explained = []
        for number, (row, answer) in enumerate(zip(rows, answers), first):
            try:
                explained.append(self.explain(row, answer, steps, of))
            except ValueError as error:
                raise ValueError(f"row {number}: {error}") from None
        return explained

    def explain(
        self, row: Mapping[str, str], answer: Mapping[str, Any], steps: int = 50, of: str = ""
    ) -> dict[str, Any]:
        """Returns how much each word of a row of inputs adds to the logit of its answer.

        `value` is the logit of the `target`, `baseline` the logit without words. `shares` belong to `words`, which
        begin in `inputs` at `starts` (code points). `gap` is the relative error of their sum, compared with `value` -
        `baseline`. `notes` tell how much of a long text is explained, and advise more steps. `of` names another target
        than the answer: a label, a word whose tag is explained, or a word for the first blank.

        Raises ValueError for `steps` below 1, for a text without words, and for an unknown `of`.
        """
        pieces = pieces_of(self.served, row)
        if steps < 1:
            raise ValueError(f"steps: expected at least 1, got {steps}")
        if not len(pieces):
            raise ValueError(f"expected a text with words, got {row!s:.80}")
        name, places, number = self._target(row, answer, of, pieces)
        rows = rows_of(self.served, pieces, places)
        shares, logits = np.zeros(len(pieces)), np.zeros(2)
        for part in rows:
            at = [part[2].tolist().index(piece) for piece in places]
            if self.kind == "entities":
                tag = self.served.answer_rows(_features(*part[:2, None]))["tags"].numpy()[0, at[0]].decode()
                name, number = f"{name}: {tag}", self.labels.index(tag)
            added, ends = self._integrate(part, [*at, number, number][:2], steps)
            np.add.at(shares, part[2], added / len(rows))  # special tokens, number -1, add nothing
            logits += ends / len(rows)
        difference = logits[0] - logits[1]
        gap = abs(shares.sum() - difference) / max(abs(difference), 1e-9)
        seen = np.unique([piece for part in rows for piece in part[2] if piece >= 0])
        notes = [f"{len(seen)} of {len(pieces)} tokens are explained, in rows: {len(rows)}"]
        notes *= len(rows) > 1 or len(seen) < len(pieces)
        if gap > MOST_GAP:
            notes.append(f"the shares miss the difference of the logits by {gap:.1%}: use more than {steps} steps")
        words = self._by_word(row, pieces[seen], shares[seen])
        return {"target": name, "value": logits[0], "baseline": logits[1], **words, "gap": gap, "notes": notes}

    def _target(
        self, row: Mapping[str, str], answer: Mapping[str, Any], of: str, pieces: np.ndarray
    ) -> tuple[str, list[int], int]:
        """Returns the target's name, the pieces at which its logits are, and its number (0: none, or known later).

        Raises ValueError for an unknown `of`.
        """
        source, ids, starts, ends = pieces.T
        if self.kind == "logits":
            name = of or self.labels[np.argmax(answer["logits"])]
            return name, [], _number(self.labels, name)
        if self.kind == "tokens":
            if not answer["num_blanks"]:
                raise ValueError(self.served.lacks_question(row, answer))
            name, blank = of or answer["tokens"][0][0], np.argmax(ids == self.served.special["MASK"])
            return name, [int(blank)], _number(self.served.tokenizer.tokens, name)
        if self.kind == "entities":
            found = [match.start() for match in re.finditer(re.escape(of), row["text"])]
            words = np.flatnonzero(np.isin(starts, found if of else [*answer["starts"], starts[0]][:1])).tolist()
            if not words:
                raise ValueError(f"of: expected a word of the text, got {of!r}")
            return row["text"][starts[words[0]] : ends[words[0]]], words[:1], 0
        if of:
            raise ValueError(f"of: expected none, because the model gives one {self.kind}, got {of!r}")
        if self.kind == "score" or not answer["answer"]:
            return self.kind, [], 0  # the logits of no answer are those of [CLS], at 0
        of_context = source == source[-1]
        begin = np.flatnonzero(of_context & (starts == answer["start"])).tolist()
        end = np.flatnonzero(of_context & (ends == answer["end"])).tolist()
        return answer["answer"], [begin[0], end[-1]], 0

    def _integrate(self, part: np.ndarray, at: list[int], steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the shares of the tokens of a row [S], and the logits of the text and of the baseline [2]."""
        path, row = _path(steps), (*part, tf.constant(at))
        groups = np.array_split(path, -(-part.shape[1] * steps // TOKENS_AT_ONCE), axis=1)
        return sum(self.gradients(*row, *group)[0].numpy() for group in groups), self.ends(*row).numpy()

    def _gradients(
        self, ids: Any, segments: Any, pieces: Any, at: Any, alphas: Any, weights: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the weighted sum of gradients times distances [S] at points of the path [N], and their logits [N]."""
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            logits, path = self._logits(ids, segments, pieces, at, alphas, tape.watch)
        gradients = tape.gradient(logits, path["rows"])
        return tf.einsum("nse,nse,n->s", gradients, path["distance"], weights), logits

    def _logits(
        self, ids: Any, segments: Any, pieces: Any, at: Any, alphas: Any, watch: Callable = lambda rows: None
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Returns the logits at points of the path [N]; the `rows` of the word table there [N,S,E], which are given to
        `watch`, and their `distance` from one end to the other.
        """
        embeddings, path = self.served.encoder.embeddings, dict[str, tf.Tensor]()

        def read(name: str, places: Any) -> tf.Tensor:
            table = original(embeddings, "read")
            if name != "word_embeddings":
                return table(name, places)
            baseline = table(name, tf.where(pieces < 0, places, self.served.special["MASK"]))  # [N,S,E]
            path["distance"] = table(name, places) - baseline
            path["rows"] = baseline + alphas[:, None, None] * path["distance"]
            watch(path["rows"])
            return path["rows"]

        rows = _features(*(tf.repeat(value[None], tf.size(alphas), 0) for value in (ids, segments)))
        if self.kind == "tokens":
            rows["masked_lm_positions"] = tf.repeat(at[None, :1], tf.size(alphas), 0)
        with overridden({(embeddings, "read"): read}):
            return LOGITS[self.kind](self.served.call_model(rows), *tf.unstack(at, 2)), path

    def _by_word(self, row: Mapping[str, str], pieces: np.ndarray, shares: np.ndarray) -> dict[str, list]:
        """Returns the words of pieces [T,4], with their shares and places."""
        source, ids, starts, ends = pieces.T
        continues = self.served.tokenizer.host.continues_word[ids]
        first = np.flatnonzero(~continues | (np.diff(source, prepend=-1) != 0))
        inputs = [[*self.served.text_inputs][number] for number in source[first]]
        begins, finishes = starts[first].tolist(), np.maximum.reduceat(ends, first)
        words = [row[name][start:end] for name, start, end in zip(inputs, begins, finishes)]
        by_word = np.add.reduceat(shares, first)
        return {"words": words, "shares": by_word.tolist(), "inputs": inputs, "starts": begins}


def explain_texts(served: Any, inputs: Tensors, steps: int = 32) -> dict[str, tf.Tensor]:
    """Returns, in a graph, `label`, `value` and `baseline` [B] of texts, and `shares`, `inputs`, `starts` and `ends`
    [B,S] of their tokens.

    Special tokens and padding have equal starts and ends.
    """
    texts = [served.tokenizer.tokenize_with_offsets(inputs[name]) for name in served.text_inputs]
    how = served.template, served.max_seq_length, served.truncate
    second = texts[1] if len(texts) > 1 else [None] * 3
    ids, starts, ends = (pack_batch(*column, *how)[0] for column in zip(texts[0], second))
    words, width = ids.in_a | ids.in_b, tf.shape(ids.input_ids)[1]
    # their rank, which a ragged tensor loses in a stored graph
    features = {name: tf.ensure_shape(value, [None, None]) for name, value in ids.features().items()}
    label = tf.argmax(served.run_model(features)["logits"], axis=1, output_type=tf.int32)
    path, explainer = tf.concat([_path(steps), [ENDS, (0.0, 0.0)]], axis=1), Explainer(served, "")

    def explain(row: tuple) -> tuple[tf.Tensor, tf.Tensor]:
        *columns, length, number = row
        arguments = [*(column[:length] for column in columns), tf.stack([0, number]), *tf.unstack(path)]
        shares, logits = explainer._gradients(*arguments)
        return tf.pad(shares, [[0, width - length]]), logits[-2:]

    rows = ids.input_ids, ids.segment_ids, tf.cast(words, tf.int32) - 1, tf.reduce_sum(ids.input_mask, 1), label
    shares, logits = tf.map_fn(explain, rows, fn_output_signature=(tf.float32, tf.float32))
    places = (tf.where(words, column.input_ids, 0) for column in (starts, ends))
    named = dict(zip(("starts", "ends"), places), inputs=tf.cast(ids.in_b, tf.int32), shares=shares)
    return {**named, "value": logits[:, 0], "baseline": logits[:, 1], "label": tf.gather(served.labels, label)}


def in_words(explanation: Mapping[str, Any]) -> str:
    """Returns an explanation as a line of text."""
    words = "  ".join(map("{} {:+.3f}".format, explanation["words"], explanation["shares"]))
    return (
        f"  {explanation['target']} {explanation['value']:.3f} = {explanation['baseline']:.3f} without words  {words}"
    )


def _path(steps: int) -> np.ndarray:
    """Returns the points of a path between its ends, and their weights [2,N]."""
    points, weights = np.polynomial.legendre.leggauss(steps)
    return np.array([(points + 1) / 2, weights / 2], np.float32)


def _features(ids: Any, segments: Any) -> dict[str, Any]:
    """Returns the inputs of the model for rows without padding."""
    return {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": segments}


def _number(names: Sequence[str], name: str) -> int:
    """Returns the number of a label or word. Raises ValueError for an unknown name."""
    if name not in names:
        raise ValueError(f"of: expected one of {', '.join(names[:20])}{', ...' * (len(names) > 20)}, got {name!r:.60}")
    return names.index(name)


def pieces_of(served: Any, row: Mapping[str, str]) -> np.ndarray:
    """Returns the tokens of all inputs as a served model tokenizes them: number of the input, id, start, end [T,4]."""
    cut = served._tokenize if "entities" in served.outputs else served.tokenizer.tokenize_with_offsets
    columns = []
    for number, name in enumerate(served.text_inputs):
        ids, *places = (column.values.numpy() for column in cut(tf.constant([row[name]])))
        columns.append(np.stack([np.full_like(ids, number), ids, *places], axis=1))
    pieces = np.concatenate(columns)
    has_blanks = "num_blanks" in served.outputs and served.special["MASK"] not in pieces[:, 1]  # not found as tokens
    for blank in re.finditer(re.escape(MASK), row["text"]) if has_blanks else ():
        inside = np.flatnonzero((pieces[:, 2] >= blank.start()) & (pieces[:, 2] < blank.end()))
        pieces[inside[0]] = 0, served.special["MASK"], *blank.span()
        pieces = np.delete(pieces, inside[1:], axis=0)
    return pieces


def rows_of(served: Any, pieces: np.ndarray, places: Sequence[int]) -> list[np.ndarray]:
    """Returns the rows that a served model makes of pieces [T,4]: ids, segments, numbers of pieces (-1: special) [3,S].

    Of several windows, returns the one with the maximum context of the first of `places`, as for answers; without
    `places`, all windows.
    """
    first, second = (np.flatnonzero(pieces[:, 0] == number).tolist() for number in range(2))
    room = served.max_seq_length - served.template.extra(bool(second))
    truncate: Any = getattr(served, "truncate", "head")
    if "start" in served.outputs or "entities" in served.outputs or truncate == "windows":
        question, moving = (first[: served.max_query_length], second) if second else ([], first)
        windows = sliding_windows(len(moving), room - len(question), served.doc_stride)
        shown = [
            moving[start : start + length]
            for number, (start, length) in enumerate(windows)
            if not places or is_max_context(windows, number, places[0] - moving[0])
        ]
        pairs = [(question, window) if second else (window, []) for window in shown]
    else:
        cut = truncate_pair(first, second, room)
        pairs = [(keep(first, len(cut[0]), truncate), keep(second, len(cut[1]), truncate))]
    rows = []
    for pair in pairs:
        # Negative numbers stand for pieces beside the ids of special tokens.
        packed, segments = served.template.pack(*([-1 - piece for piece in part] for part in pair))
        numbers_of_pieces = np.maximum(-1 - np.array(packed), -1)
        ids = np.where(numbers_of_pieces < 0, packed, pieces[numbers_of_pieces, 1])
        rows.append(np.array([ids, segments, numbers_of_pieces], np.int32))
    return rows
