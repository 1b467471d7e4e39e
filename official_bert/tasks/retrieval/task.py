"""Embeddings for search and similarity: pairs of texts that belong together are near each other (Reimers and Gurevych
2019).

Files are tables with a column for each text: a question and its answer, a sentence and its paraphrase. With a column of
scores, both texts are compared as in STS.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf
from absl import logging
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from official_bert.data.batches.feature_rows import ChoiceFeatures, TextFeatures
from official_bert.data.batches.sources import ExampleSource
from official_bert.data.batches.text_features import make_features
from official_bert.data.labelled import labelled_texts, splits
from official_bert.data.labelled.labelled_texts import LabelledTexts
from official_bert.data.rows import Source
from official_bert.models.bi_encoder import BiEncoder
from official_bert.models.text_vectors import PROMPT_TOKENS
from official_bert.models.vector_layers import vector_width
from official_bert.objectives.ranking_losses import MISSING
from official_bert.objectives.vectors import IN_GROUPS, NearVectors
from official_bert.search.collections import Collection, is_collection
from official_bert.tasks.answers import Answers
from official_bert.tasks.data import DataFiles, Steps, row_spec
from official_bert.tasks.file_data import Use
from official_bert.tasks.ranking_data import RankingData, require_negatives
from official_bert.tasks.retrieval.held_out import HeldOutCollection, Pairs, number_texts
from official_bert.tasks.retrieval.options import OF_A_TEACHER, TWO_COLUMNS, Options
from official_bert.tasks.task import TaskBase
from official_bert.training.held_out import HeldOut
from official_bert.training.machines.distribution import check_batch

TEXTS = 2  # of a row without negatives


class RetrievalData(RankingData):
    """Texts that belong together: rows [B,T,S] of both texts and each negative."""

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of a batch at full length, with a negative per column of negatives."""
        options = self.options
        texts = TEXTS + (options.most_negatives or len(options.negative_columns))
        target = {"text_numbers": tf.TensorSpec((batch_size, texts), tf.int32)}
        if options.train_on == "scores":
            target = {"scores": tf.TensorSpec((batch_size,), tf.float32)}
        elif options.teacher_columns:
            target = {"teacher": tf.TensorSpec((batch_size, texts - 1), tf.float32)}
        prompts = (
            {} if self.options.include_prompt else {PROMPT_TOKENS: tf.TensorSpec((batch_size, texts, 1), tf.int32)}
        )
        return row_spec(batch_size, texts, options.max_seq_length) | target | prompts

    @property
    def may_hold_out(self) -> bool:  # type: ignore[override]
        """Whether training rows can be held out: not if they are single texts."""
        return self.options.train_on != "texts"

    def check_files(self, train_path: Source, eval_path: Source, steps: Steps) -> None:
        """Also raises ValueError for scores in training only: the correlation on evaluation data selects the best
        checkpoint.
        """
        super().check_files(train_path, eval_path, steps)
        if (
            steps.evaluate
            and self.options.score_column
            and self.task.answers.best_metric() == "spearman"
            and (is_collection(eval_path or train_path) or (self.options.label_column and not eval_path))
        ):
            raise ValueError(
                "config.options.score_column: expected a table with scores to evaluate on, got "
                f"{eval_path or train_path}, in which texts are searched"
            )

    def read_file(self, path: Source, use: Use) -> LabelledTexts | Collection:
        """Reads rows to train on, pairs or a collection to search, or pairs to compare."""
        if use == "test":
            return self.read_pairs(path, empty="keep", labelled=False)
        if use == "train":
            return self._read_training_rows(path)
        if is_collection(path):
            return self.read_collection(path)
        return self._read_scored(path) if self.options.score_column else self.read_pairs(path)

    def _read_training_rows(self, path: Source) -> LabelledTexts:
        """Reads the rows to train on: of a collection, of pairs with scores, or of pairs with or without negatives."""
        options = self.options
        if is_collection(path) and (
            options.train_on == "scores" or options.negative_columns or options.teacher_columns or options.label_column
        ):
            raise ValueError(
                f"{path}: a collection (BEIR) has pairs and the passages judged irrelevant: expected no score_column, "
                "negative_columns, teacher_columns or label_column in config.options to train on it"
            )
        if options.train_on == "scores":
            return self._read_scored(path)
        rows = self.read_with_negatives(path)
        if options.loss_name in ("triplet", *OF_A_TEACHER):
            require_negatives(
                rows, path, f"a negative, which options.loss: {options.loss_name} compares with the positive"
            )
        return rows

    def _read_scored(self, path: Source) -> LabelledTexts:
        """Reads pairs with their scores."""
        options = self.options
        texts = (options.text_column, options.text_pair_column)
        table = labelled_texts.read_table(
            options, path, [*texts, options.score_column], logging.warning, options.score_column
        )
        table = labelled_texts.without_empty(table, texts, options.empty_text, logging.warning)
        first, second = (labelled_texts.texts(table, name) for name in texts)
        return LabelledTexts(
            str(path),
            first,
            second,
            labelled_texts.scores(table, options.score_column, *options.score_range),
            unaccepted=table.unaccepted,
        )

    def answers_of(self, held_out: LabelledTexts | Collection, path: Source) -> LabelledTexts:
        return held_out.pairs() if isinstance(held_out, Collection) else held_out

    def divide(self, train: LabelledTexts, hold_out: bool) -> splits.Parts:
        """Divides pairs such that pairs with a text in common stay together; tenths of the scores are the strata."""
        both = number_texts(list(zip(train.text, train.text_pair or ())))
        ones = np.ones(len(both), np.int8)
        common = connected_components(
            coo_array((ones, (both[:, 0], both[:, 1])), shape=(both.max() + 1,) * 2), directed=False
        )[1]
        strata = (
            [0] * len(both)
            if train.targets is None or self.options.train_on != "scores"
            else splits.bins(train.targets)
        )
        return splits.divide(self.options, common[both[:, 0]].tolist(), strata, hold_out, train.path)

    def hold_out_rows(self, train: LabelledTexts, numbers: np.ndarray, files: DataFiles) -> LabelledTexts:
        """Returns held-out pairs with their scores, if they have any."""
        path = self.path(files, "train")
        if self.options.score_column and not is_collection(path) and not self.options.label_column:
            return self._read_scored(path).rows(numbers)
        return dataclasses.replace(train.rows(numbers), targets=None, choices=None)

    def check(self, steps: Steps) -> None:
        """Also raises ValueError for batches whose replica parts or micro-batches would split a group, and for one
        column used for both texts.

        Single texts get vectors separately, also those of the second column.
        """
        super().check(steps)
        settings, options = self.config.training, self.options
        if options.text_column == options.text_pair_column:
            raise ValueError(f"{TWO_COLUMNS}, got {options.text_column!r} twice")
        model = self.config.model
        width = vector_width(model.hidden_size, options.pooling, options.vector_layers)
        if options.dimensions > width:
            raise ValueError(
                f"config.options.dimensions: expected at most the {width} numbers of a vector, got {options.dimensions}"
            )
        width = options.dimensions or width
        if options.matryoshka and max(options.matryoshka) > width:
            named = "model.hidden_size" if width == model.hidden_size else "the numbers of a vector"
            raise ValueError(
                f"config.options.matryoshka: expected at most {named} = {width}, got {max(options.matryoshka)}"
            )
        if (
            options.train_on == "texts"
            and steps.train
            and not (model.hidden_dropout_prob or model.attention_probs_dropout_prob)
        ):
            raise ValueError(
                "config.options.train_on: texts: expected dropout in the model (model.hidden_dropout_prob), which "
                "makes two vectors of one text differ, got none"
            )
        if steps.train and options.in_groups:
            self._check_groups("batch_size", settings.accumulation_steps)

    def _check_groups(self, key: str, micro_batches: int) -> None:
        """Raises ValueError for a batch whose part for a micro-batch of a replica would cut a group."""
        batch, size = getattr(self.config.training, key), self.options.group_size
        if (rows := check_batch(key, batch, tf.distribute.get_strategy(), micro_batches)) % size:
            raise ValueError(
                f"config.training.{key}: expected whole groups of options.group_size = {size} rows in each micro-batch "
                f"of each replica, got {rows} rows there ({batch} in the batch)"
            )

    def make_train(
        self, train: LabelledTexts, files: DataFiles, model: keras.Model
    ) -> tuple[ExampleSource, Sequence[str]]:
        rows = _rows(train)
        if train.targets is not None:
            extra = (
                {"scores": self._cosines(train.targets)}
                if self.options.train_on == "scores"
                else {"teacher": train.targets}
            )
        else:
            extra = {"text_numbers": number_texts(rows, MISSING)}
        return self._make_source(rows, extra, files, training=True), ()

    def make_held_out(self, held_out: LabelledTexts | Collection, files: DataFiles, model: keras.Model) -> HeldOut:
        """Returns batches of a collection or of pairs; pairs get the training loss if it needs neither negatives nor a
        teacher.
        """
        if isinstance(held_out, Collection):
            return self._collection(held_out, files)
        if held_out.targets is not None:
            extra = {"scores": self._cosines(held_out.targets)} if self.options.loss_name != "cosent" else {}
        elif self.options.loss_name in IN_GROUPS:
            extra = {"text_numbers": number_texts(_rows(held_out))}
            self._check_groups("eval_batch_size", 1)
        else:
            extra = {}
        return Pairs(held_out, self._make_source(_rows(held_out), extra, files))

    def _collection(self, collection: Collection, files: DataFiles) -> HeldOutCollection:
        queries, passages = (
            [prompt + text for text in texts]
            for prompt, texts in (
                (self.options.query_prompt, collection.queries),
                (self.options.passage_prompt, collection.passages),
            )
        )
        prompts = np.repeat(self._prompt_tokens, (len(queries), len(passages)))[:, None]
        return HeldOutCollection(
            collection, self._source_of([(text,) for text in (*queries, *passages)], {}, files, prompts=prompts)
        )

    @property
    def _prompt_tokens(self) -> tuple[int, int]:
        """How many tokens the prompts of a query and of a passage have, [CLS] included; 0 without a prompt."""
        query, passage = (
            TextFeatures(make_features([prompt], None, self.tokenizer, self.options.max_seq_length))[0]["input_ids"]
            for prompt in (self.options.query_prompt, self.options.passage_prompt)
        )
        return (len(query) - 1 if self.options.query_prompt else 0), (
            len(passage) - 1 if self.options.passage_prompt else 0
        )

    def _make_source(
        self, rows: Sequence[Sequence[str]], extra: dict[str, np.ndarray], files: DataFiles, training: bool = False
    ) -> ExampleSource:
        """Makes batches of rows of texts, the first of which are queries."""
        query, passage = self.options.query_prompt, self.options.passage_prompt
        with_prompts = (
            [(query + first, *(passage + text for text in others)) for first, *others in rows]
            if query or passage
            else rows
        )
        query_tokens, passage_tokens = self._prompt_tokens
        prompts = np.full((len(rows), max(map(len, rows))), passage_tokens, np.int32)
        prompts[:, 0] = query_tokens
        return self._source_of(with_prompts, extra, files, training, prompts)

    def _source_of(
        self,
        rows: Sequence[Sequence[str]],
        extra: dict[str, np.ndarray],
        files: DataFiles,
        training: bool = False,
        prompts: np.ndarray | None = None,
    ) -> ExampleSource:
        """`prompts` [N,T] are the numbers of tokens of prompts."""
        arrays = make_features(
            [text for row in rows for text in row], None, self.tokenizer, self.options.max_seq_length, files.cache_dir
        )
        if prompts is not None and not self.options.include_prompt:
            extra = extra | {PROMPT_TOKENS: prompts[..., None]}
        return self.make_batches(ChoiceFeatures(TextFeatures(arrays), [len(row) for row in rows], extra), training)

    def _cosines(self, scores: np.ndarray) -> np.ndarray:
        """Scales scores to 0 to 1, float32 [N]; without `score_range`, which only their correlation can do, by those
        that are there.
        """
        low, high = self.options.score_range or (scores.min(), scores.max())
        return (scores - np.float32(low)) / np.float32(high - low or 1.0)


class RetrievalAnswers(Answers):
    """Vectors of texts."""

    def best_metric(self) -> str:
        """Returns the correlation with the scores, or the mean reciprocal rank."""
        return "spearman" if self.options.score_column else "mrr"

    def input_columns(self) -> dict[str, tuple[str, ...]]:
        return {"text": (self.options.text_column,)}


class Task(TaskBase):
    """A vector for each text: rows [B,T,S], `[CLS] text [SEP]` for each of both texts and each negative."""

    Options = Options
    head = "embeddings"
    serving: ClassVar[str] = "official_bert.tasks.retrieval.served:VECTORS"
    data = property(RetrievalData)
    answers = property(RetrievalAnswers)

    def build_model(self) -> keras.Model:
        """Builds an encoder without a head."""
        options, training = self.options, self.config.training
        settings = {
            "pooling": options.pooling,
            "texts_at_once": options.texts_at_once,
            "cuts": not training.xla,
            "layers": options.vector_layers,
            "dimensions": options.dimensions,
        }
        return BiEncoder.make(self.config.model, settings, recompute=training.recompute)

    @property
    def objective(self) -> NearVectors:
        options = self.options
        return NearVectors(
            options.loss_name, options.group_size, options.temperature, options.margin, options.matryoshka
        )


def _rows(data: LabelledTexts) -> list[tuple[str, ...]]:
    """The texts of each row: anchor, positive, negatives."""
    assert data.text_pair is not None
    return [
        (first, second, *negatives)
        for first, second, negatives in zip(data.text, data.text_pair, data.choices or [()] * len(data))
    ]
