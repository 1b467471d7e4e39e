"""What a retrieval run trains on, its loss, and its vectors."""

import dataclasses
import math
from typing import Literal

from official_bert.config import check_used
from official_bert.data import labelled_texts
from official_bert.data.search.collections import UnknownIds
from official_bert.data.search.rows import SearchColumns
from official_bert.data.splits import SplitOptions
from official_bert.data.tables import TableOptions, checked_delimiter
from official_bert.models.bi_encoder import Pooling

TWO_COLUMNS = "config.options.text_column, text_pair_column: expected two columns"
Loss = Literal["", "contrastive", "contrastive_both", "triplet", "margin_mse", "kl", "cosine", "cosent"]
OF_SCORES = ("cosine", "cosent")  # losses of pairs with scores; all others are those of pairs that belong together
OF_GROUPS = ("contrastive", "contrastive_both", "cosent")
OF_A_TEACHER = ("margin_mse", "kl")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SplitOptions, TableOptions):
    """The columns of the files, the loss, and the vectors."""

    max_seq_length: int = 128  # of each text
    buckets: tuple[int, ...] = ()  # lengths to which batches are padded; none: to the longest of each
    text_column: str = "text"
    text_pair_column: str = "text_pair"
    negative_columns: tuple[str, ...] = ()  # texts that do not answer the first one; a cell is a text or a list of texts
    most_negatives: int = 0  # of a row, the first ones; 0: all
    label_column: str = ""  # of the training file: above 0, both texts belong together; else the second one is a negative
    teacher_columns: tuple[str, ...] = ()  # a teacher's scores of the second text and of each negative; a cell may be a list
    score_column: str = ""  # of the evaluation file: compare scores with cosines; "": search for the second texts
    # Rows that belong together, rows with scores of similarity, or single texts, each its own pair under two dropout masks (SimCSE).
    train_on: Literal["pairs", "scores", "texts"] = "pairs"
    loss: Loss = ""  # "": contrastive, or cosine for scores
    score_range: tuple[float, ...] = ()  # the scores of cosines 0 and 1, for training on scores; of STS-B, 0 and 5
    group_size: int = 32  # rows in which the second text of each is to be found; replicas and micro-batches hold whole groups
    texts_at_once: int = 0  # encoded together in training, whose activations alone take memory (GradCache); 0: all of a micro-batch
    temperature: float = 0.05  # divides the cosines
    margin: float = 0.2  # of triplets, between cosines
    matryoshka: tuple[int, ...] = ()  # first numbers of the vectors that are good vectors too; the loss is the sum over them
    pooling: Pooling = "mean"
    normalize: bool = False  # exported vectors have length 1
    query_prompt: str = ""  # in front of first texts, such as "query: "
    passage_prompt: str = ""  # in front of second texts and negatives
    unknown_ids: UnknownIds = "refuse"  # of judgements of a collection (BEIR)
    empty_text: labelled_texts.EmptyText = "refuse"

    def __post_init__(self):
        super().__post_init__()
        checked_delimiter(self.delimiter)
        if self.group_size < 2:
            raise ValueError(f"config.options.group_size: expected at least 2 rows, got {self.group_size}")
        for name in ("temperature", "margin"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ValueError(f"config.options.{name}: expected a positive number, got {getattr(self, name)}")
        for name in ("texts_at_once", "most_negatives"):
            if getattr(self, name) < 0:
                raise ValueError(f"config.options.{name}: expected at least 0, got {getattr(self, name)}")
        if self.score_range and (len(self.score_range) != 2 or not self.score_range[0] < self.score_range[1]):
            raise ValueError(f"config.options.score_range: expected lowest and highest score, got {list(self.score_range)}")
        if self.train_on == "scores" and not (self.score_column and self.score_range):
            raise ValueError("config.options.train_on: scores: expected options.score_column and score_range (the lowest and the highest "
                             "score; for STS-B [0,5]) beside it")
        if self.matryoshka and (min(self.matryoshka) < 1 or len(set(self.matryoshka)) < len(self.matryoshka)):
            raise ValueError(f"config.options.matryoshka: expected different numbers of at least 1, got {list(self.matryoshka)}")
        self._check_loss()
        self._check_columns()

    def _check_loss(self) -> None:
        """Raises ValueError for a loss of other data, and for options that it does not read."""
        if (self.loss_name in OF_SCORES) != (self.train_on == "scores"):
            raise ValueError(f"config.options.loss: {self.loss_name}: expected options.train_on: "
                             f"{'scores' if self.loss_name in OF_SCORES else 'pairs or texts'} beside it, got {self.train_on}")
        if self.train_on == "texts" and self.loss_name not in OF_GROUPS:
            raise ValueError(f"config.options.loss: {self.loss_name}: expected contrastive beside options.train_on: texts")
        reader = "options.train_on: pairs" if self.train_on == "scores" else "a loss that reads it"
        check_used(self, ["temperature"], reader, self.loss_name not in ("cosine", "triplet"))
        check_used(self, ["group_size"], reader, self.in_groups)
        check_used(self, ["margin"], "options.loss: triplet", self.loss_name == "triplet")
        check_used(self, ["teacher_columns"], f"options.loss: {' or '.join(OF_A_TEACHER)}", self.loss_name in OF_A_TEACHER)

    def _check_columns(self) -> None:
        """Raises ValueError for columns that are missing, that stand there twice, or that nothing reads."""
        if not (self.text_column and self.text_pair_column):
            raise ValueError(f"{TWO_COLUMNS}, got {self.text_column!r} and {self.text_pair_column!r}")
        check_used(self, ["negative_columns", "label_column", "most_negatives"], "options.train_on: pairs", self.train_on == "pairs")
        if self.label_column and (self.negative_columns or self.loss_name in OF_A_TEACHER):
            raise ValueError("config.options.label_column: expected no negative_columns and no loss on a teacher's scores beside it: "
                             "labels say which texts are negatives")
        if self.loss_name in OF_A_TEACHER and not (self.teacher_columns and self.negative_columns):
            raise ValueError(f"config.options.loss: {self.loss_name}: expected options.teacher_columns and negative_columns beside it")
        pair = [self.text_pair_column] if self.train_on != "texts" and self.text_pair_column != self.text_column else []
        columns = [self.text_column, *pair, *self.negative_columns, *self.teacher_columns,
                   *filter(None, (self.label_column, self.score_column))]
        if "" in columns or len(set(columns)) < len(columns):
            raise ValueError("config.options.text_pair_column, negative_columns, teacher_columns, label_column, score_column: expected "
                             f"different columns, got {columns}")

    @property
    def loss_name(self) -> Loss:
        """The loss of training."""
        return self.loss or ("cosine" if self.train_on == "scores" else "contrastive")

    @property
    def in_groups(self) -> bool:
        """Whether batches must consist of whole groups."""
        return self.loss_name in OF_GROUPS

    @property
    def training_columns(self) -> SearchColumns:
        """The columns of a training file without scores."""
        return SearchColumns(text=self.text_column, text_pair=self.text_column if self.train_on == "texts" else self.text_pair_column,
                             negatives=self.negative_columns, teacher=self.teacher_columns, label=self.label_column,
                             most_negatives=self.most_negatives)
