"""The format of the files of words and tags, and the model that tags the words."""

import dataclasses
from typing import Annotated, Literal

from official_bert.data.labelled.label_weights import Weights
from official_bert.data.labelled.labelled_texts import EmptyText
from official_bert.data.labelled.splits import SplitOptions
from official_bert.data.tagged.chunk_tags import Scheme
from official_bert.data.tagged.span_forms import Overlaps
from official_bert.data.tagged.spans import Unit
from official_bert.fields import Constraint, Count, Rate, ShareBelow1, only_with
from official_bert.tasks.calibration import CalibrationOptions

LstmSize = Annotated[
    int,
    Constraint("an even number from 2 to 8192, half of it for each direction", lambda size: size in range(2, 8193, 2)),
]
LstmLayers = Annotated[int, Constraint("0 to 16", lambda layers: layers in range(17))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(CalibrationOptions, SplitOptions):
    """The format of the files, and the model that tags the words."""

    max_seq_length: int = 128
    """Most tokens of a row."""
    doc_stride: Count = 64
    """Tokens from one window of a longer text to the next."""
    buckets: tuple[int, ...] = ()
    """Lengths to which batches are padded; none: the longest row of each batch."""
    word_column: int = 0
    """Number of the column of words, from 0; -1 is the last."""
    tag_column: int = -1
    """Number of the column of tags."""
    separator: str = ""
    """Text between columns; empty: a tab if every line has one, else any run of spaces and tabs."""
    empty_text: EmptyText = "refuse"
    """Sentences without words, and blank words."""
    encoding: str = ""
    """Encoding of text; empty: UTF-8."""
    places: Unit = "characters"
    """Unit of the places of entities; utf16: as JavaScript counts."""
    overlaps: Overlaps = "refuse"
    """Overlapping entities of files with character spans: each word has one tag."""
    scheme: Scheme = "iob2"
    """Scheme of the model's tags; files may have any, and given labels decide. plain: tags of single words (parts of
    speech), measured by accuracy and macro F1."""
    labels: tuple[str, ...] = ()
    """Tags in the order of the logits; none: all tags of the types in the training data."""
    document_context: bool = False
    """Rows are documents (between -DOCSTART- lines, or `# newdoc` of CoNLL-U) instead of sentences."""
    dropout: Rate = 0.1
    """Dropout before the classifier."""
    crf: bool = False
    """A conditional random field over the logits."""
    boundary_scores: bool = only_with(True, "crf")
    """Scores of the CRF for the first and the last tag."""
    crf_rate: float = only_with(100.0, "crf")
    """Factor between the learning rate of the CRF's scores and the encoder's."""
    constrain: bool = False
    """Predict only legal sequences of tags, with or without a CRF."""
    features: Literal["", "embeddings", "last", "second_to_last", "weighted_sum", "sum", "concat"] = ""
    """Layers whose frozen rows a BiLSTM reads (paper 5.3); empty: fine-tune."""
    feature_layers: int = only_with(4, "features", "weighted_sum", "sum", "concat")
    """Number of last layers that are summed or concatenated; 0: all."""
    lstm_size: LstmSize = only_with(768, "features")
    """Width of the BiLSTM on frozen features, both directions together."""
    lstm_layers: LstmLayers = only_with(2, "features")
    """Layers of the BiLSTM."""
    class_weights: Weights = ""
    """Weights of the tags in the loss: in the order of the labels or by tag; balanced: rare ones count as much as
    frequent ones."""
    label_smoothing: ShareBelow1 = 0.0
    """Share of the target that is spread evenly over all tags."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.crf and (self.class_weights or self.label_smoothing):
            raise ValueError(
                "config.options.class_weights, label_smoothing: expected no crf with them: its loss is that of "
                "whole chains"
            )
