"""The format of the files of words and tags, and the model that tags the words."""

import dataclasses
from typing import Literal

from official_bert.config import check_used
from official_bert.data.label_weights import Weights, check_smoothing, check_weights
from official_bert.data.labelled_texts import EmptyText
from official_bert.data.splits import SplitOptions
from official_bert.data.tagged.chunk_tags import Scheme
from official_bert.data.tagged.span_forms import Overlaps, Unit
from official_bert.model_config import check_rate
from official_bert.tasks.tagging.conll import Columns

LARGEST_LSTM, MOST_LSTMS = 8192, 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(SplitOptions):
    """The format of the files, and the model that tags the words."""

    max_seq_length: int = 128
    doc_stride: int = 64  # tokens from one window of a longer text to the next
    buckets: tuple[int, ...] = ()  # lengths that batches are padded to; none: to the longest of each batch
    word_column: int = 0  # -1 is the last
    tag_column: int = -1
    separator: str = ""  # between columns; "": any run of spaces and tabs
    empty_text: EmptyText = "refuse"  # sentences without words, and blank words
    encoding: str = ""  # of text; "": UTF-8
    places: Unit = "characters"  # in which the places of entities are counted
    overlaps: Overlaps = "refuse"  # of entities given as character spans: each word has one tag
    scheme: Scheme = "iob2"  # of the model; files may have any, and labels that are given decide
    labels: tuple[str, ...] = ()  # in the order of the logits; none: all tags of the types in the training data
    document_context: bool = False  # rows are documents (between -DOCSTART- lines) instead of sentences
    dropout: float = 0.1  # before the classifier
    crf: bool = False
    boundary_scores: bool = True  # of the CRF: scores for the first and the last tag
    crf_rate: float = 100.0  # how many times faster than the encoder its scores learn
    constrain: bool = False  # predict only legal sequences of tags, with or without a CRF
    features: Literal["", "embeddings", "last", "second_to_last", "weighted_sum", "sum", "concat"] = ""  # "": fine-tune
    feature_layers: int = 4  # number of last layers that are summed or concatenated; 0: all
    lstm_size: int = 768  # on frozen features, both directions together
    lstm_layers: int = 2
    class_weights: Weights = ""  # of the tags, in the order of the labels or by tag; balanced: rare ones count as much as frequent ones
    label_smoothing: float = 0.0  # share of the target that is spread evenly over all tags

    def __post_init__(self):
        super().__post_init__()
        if self.crf and (self.class_weights or self.label_smoothing):
            raise ValueError("config.options.class_weights, label_smoothing: expected no crf beside them: its loss is that of whole chains")
        check_weights(self.class_weights, "config.options.class_weights")
        check_smoothing(self.label_smoothing, "config.options.label_smoothing")
        check_rate(self.dropout, "config.options.dropout")
        if self.lstm_size % 2 or not 2 <= self.lstm_size <= LARGEST_LSTM:
            raise ValueError(f"config.options.lstm_size: expected an even number from 2 to {LARGEST_LSTM}, half of it for each direction, "
                             f"got {self.lstm_size}")
        if not 0 <= self.lstm_layers <= MOST_LSTMS:
            raise ValueError(f"config.options.lstm_layers: expected 0 to {MOST_LSTMS}, got {self.lstm_layers}")
        check_used(self, ("boundary_scores", "crf_rate"), "options.crf: true", self.crf)
        check_used(self, ("lstm_size", "lstm_layers"), "options.features", bool(self.features))
        check_used(self, ["feature_layers"], "options.features: weighted_sum, sum or concat",
                   self.features in ("weighted_sum", "sum", "concat"))

    @property
    def columns(self) -> Columns:
        """How files are read."""
        return Columns(self.word_column, self.tag_column, self.separator, self.scheme == "plain", self.labels, self.empty_text,
                       self.overlaps, self.encoding, self.places)
