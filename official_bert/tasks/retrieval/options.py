"""What a retrieval run trains on, its loss, and its vectors."""

import dataclasses
from typing import Annotated, Literal

from official_bert.data.labelled import labelled_texts
from official_bert.data.labelled.splits import SplitOptions
from official_bert.data.tabular.tables import TableOptions
from official_bert.fields import Constraint, Natural, Positive, ScoreRange, check_used, only_with
from official_bert.models.vector_layers import Poolings, VectorLayer
from official_bert.search.collections import UnknownIds
from official_bert.search.rows import SearchColumns

TWO_COLUMNS = "config.options.text_column, text_pair_column: expected two columns"
Loss = Literal["", "contrastive", "contrastive_both", "triplet", "margin_mse", "kl", "cosine", "cosent"]
Sizes = Annotated[
    tuple[int, ...],
    Constraint(
        "different numbers of at least 1",
        lambda sizes: len({*sizes}) == len(sizes) and all(size >= 1 for size in sizes),
    ),
]
OF_SCORES = ("cosine", "cosent")  # losses of pairs with scores; all others are those of pairs that belong together
OF_GROUPS = ("contrastive", "contrastive_both", "cosent")
PAIRS = ("train_on", "pairs")
OF_A_TEACHER = ("margin_mse", "kl")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SplitOptions, TableOptions):
    """The columns of the files, the loss, and the vectors."""

    max_seq_length: int = 128
    """Most tokens of each text."""
    buckets: tuple[int, ...] = ()
    """Lengths to which batches are padded; none: the longest row of each batch."""
    text_column: str = "text"
    """Column of the first text, such as a query."""
    text_pair_column: str = "text_pair"
    """Column of the text that belongs to it."""
    negative_columns: tuple[str, ...] = only_with((), *PAIRS)
    """Columns of texts that do not answer the first one; a cell is a text or a list of texts."""
    most_negatives: Natural = only_with(0, *PAIRS)
    """Most negatives of a row, the first ones; 0: all."""
    label_column: str = only_with("", *PAIRS)
    """Column of the training file: above 0, both texts belong together; else the second one is a negative."""
    teacher_columns: tuple[str, ...] = only_with((), "loss", *OF_A_TEACHER)
    """Columns of a teacher's scores of the second text and of each negative, which may be lists."""
    score_column: str = ""
    """Column of the evaluation file with scores, to which cosines are compared; empty: the second texts are searched
    for."""
    train_on: Literal["pairs", "scores", "texts"] = "pairs"
    """Rows that belong together, rows with scores of similarity, or single texts, each its own pair under two dropout
    masks (SimCSE)."""
    loss: Loss = ""
    """Loss of training; empty: contrastive, or cosine for scores."""
    score_range: ScoreRange = ()
    """Scores of cosines 0 and 1, for training on scores; of STS-B, 0 and 5."""
    group_size: Annotated[int, Constraint("at least 2 rows", lambda rows: rows >= 2)] = 32
    """Rows in which the second text of each is to be found; replicas and micro-batches hold whole groups."""
    texts_at_once: Natural = 0
    """Texts encoded together in training, whose activations alone take memory (GradCache); 0: all of a micro-batch."""
    temperature: Positive = 0.05
    """Divides the cosines."""
    margin: Positive = only_with(0.2, "loss", "triplet")
    """Least difference of cosines, of triplets."""
    matryoshka: Sizes = ()
    """Sizes of beginnings of the vectors that are trained as vectors too; the loss is summed over them."""
    pooling: Poolings = "mean"
    """Vector of a text, of one or several of these poolings: the row of [CLS], the mean of all rows,
    their largest numbers, their sum divided by the root of their number, their mean weighted by place, the last row."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled too."""
    vector_layers: tuple[VectorLayer, ...] = ()
    """Layers behind the pooling: dense, layer_norm or normalize."""
    dimensions: Natural = 0
    """Only these first numbers of a vector are used; 0: all."""
    normalize: bool = False
    """Exported vectors have length 1."""
    query_prompt: str = ""
    """Text in front of first texts, such as `query: `."""
    passage_prompt: str = ""
    """Text in front of second texts and negatives."""
    default_prompt: str = ""
    """Prompt in prediction for texts that are marked neither as queries nor as passages."""
    more_prompts: dict[str, str] = dataclasses.field(default_factory=dict)
    """More prompts in prediction, by their names, such as `{clustering: "clustering: "}`."""
    unknown_ids: UnknownIds = "refuse"
    """Judgements of a collection (BEIR) whose ids are unknown."""
    empty_text: labelled_texts.EmptyText = "refuse"
    """Rows with an empty text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_on == "scores" and not (self.score_column and self.score_range):
            raise ValueError(
                "config.options.train_on: scores: expected options.score_column and score_range (the lowest and the "
                "highest score; for STS-B [0,5]) with it"
            )
        self._check_loss()
        self._check_columns()

    def _check_loss(self) -> None:
        """Raises ValueError for a loss of other data, and for options that it does not read."""
        if (self.loss_name in OF_SCORES) != (self.train_on == "scores"):
            raise ValueError(
                f"config.options.loss: {self.loss_name}: expected options.train_on: "
                f"{'scores' if self.loss_name in OF_SCORES else 'pairs or texts'} with it, got {self.train_on}"
            )
        if self.train_on == "texts" and self.loss_name not in OF_GROUPS:
            raise ValueError(
                f"config.options.loss: {self.loss_name}: expected contrastive with options.train_on: texts"
            )
        reader = "options.train_on: pairs" if self.train_on == "scores" else "a loss that reads it"
        check_used(self, ["temperature"], reader, self.loss_name not in ("cosine", "triplet"))
        check_used(self, ["group_size"], reader, self.in_groups)

    def _check_columns(self) -> None:
        """Raises ValueError for columns that are missing, that stand there twice, or that nothing reads."""
        if not (self.text_column and self.text_pair_column):
            raise ValueError(f"{TWO_COLUMNS}, got {self.text_column!r} and {self.text_pair_column!r}")
        if self.label_column and (self.negative_columns or self.loss_name in OF_A_TEACHER):
            raise ValueError(
                "config.options.label_column: expected no negative_columns and no loss on a teacher's scores with it: "
                "labels say which texts are negatives"
            )
        if self.loss_name in OF_A_TEACHER and not (self.teacher_columns and self.negative_columns):
            raise ValueError(
                f"config.options.loss: {self.loss_name}: expected options.teacher_columns and negative_columns with it"
            )
        pair = [self.text_pair_column] if self.train_on != "texts" and self.text_pair_column != self.text_column else []
        columns = [
            self.text_column,
            *pair,
            *self.negative_columns,
            *self.teacher_columns,
            *filter(None, (self.label_column, self.score_column)),
        ]
        if "" in columns or len(set(columns)) < len(columns):
            raise ValueError(
                "config.options.text_pair_column, negative_columns, teacher_columns, label_column, score_column: "
                f"expected different columns, got {columns}"
            )

    @property
    def loss_name(self) -> Loss:
        """The loss of training."""
        return self.loss or ("cosine" if self.train_on == "scores" else "contrastive")

    @property
    def prompts(self) -> dict[str, str]:
        """The prompts that there are, by the names of their signatures; beside a default one, they may be empty."""
        prompts = {**self.more_prompts, "query": self.query_prompt, "passage": self.passage_prompt}
        return {name: prompt for name, prompt in prompts.items() if prompt or self.default_prompt}

    @property
    def in_groups(self) -> bool:
        """Whether batches must consist of whole groups."""
        return self.loss_name in OF_GROUPS

    @property
    def training_columns(self) -> SearchColumns:
        """The columns of a training file without scores."""
        return SearchColumns(
            text=self.text_column,
            text_pair=self.text_column if self.train_on == "texts" else self.text_pair_column,
            negatives=self.negative_columns,
            teacher=self.teacher_columns,
            label=self.label_column,
            most_negatives=self.most_negatives,
        )
