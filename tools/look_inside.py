"""Makes a page of pictures about the knowledge of a pre-trained model: filled blanks, similar words, attention maps,
texts in a plane.

    python tools/look_inside.py --model=runs/small --input_file=held_out.txt --output_dir=inside

The text has a sentence per line and an empty line between documents, as tools/prepare_corpus.py writes it. Use text
that the model has not seen. `report.html` needs no network and no script; `report.json` has its numbers. `--markdown`
also writes `report.md` with its pictures beside it, for sites that show such files.
"""

from official_bert.command_line import run_main

import collections
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from official_bert.reports.sections import Picture, Section
from official_bert.storage.files import make_folder, read_lines

if TYPE_CHECKING:
    from official_bert.interface.predictor import Predictor
    from official_bert.models.encoder import BertEncoder
    from official_bert.text.tokenization import FullTokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "model", None, "A training run's folder, or a checkpoint of any format, with the masked-LM head.", required=True
)
flags.DEFINE_string("input_file", None, "Sentences, one per line, an empty line between documents.", required=True)
flags.DEFINE_string("output_dir", None, "The folder of report.html and report.json.", required=True)
flags.DEFINE_string("vocab_file", "", "The vocabulary, for checkpoints and runs that have none beside them.")
flags.DEFINE_string("sentence", "", "The sentence of the attention maps (default: the first of 9 to 14 WordPieces).")
flags.DEFINE_integer(
    "least_count", 10, "Fewest occurrences in the text of a word whose neighbours are shown.", lower_bound=1
)
flags.DEFINE_bool("markdown", False, "Also write report.md and its pictures.")

MOST_SENTENCES = 2000  # of the text that are read
BLANKS_A_SENTENCE, SHOWN_BLANKS, GUESSES = 4, 12, 5
WORDS_OF_SENTENCE = range(4, 41)  # in which words are hidden
MOST_BLANKS = 1000
RIGHT, SEPARATOR = "✓", "  |  "  # a token may be a comma, or a bar of its own, which its quotation marks tell apart
SHORT_WORD = 3  # letters: mostly grammar
SHOWN_WORDS, NEIGHBOURS = 15, 6
MEASURED_SENTENCES, LONGEST = 100, 64  # of the averages of attention; tokens
HEADS_A_PICTURE = 4
# fields of relatives of BERT
OTHER_ATTENTION = ("relative_buckets", "position_buckets", "rotary", "window", "layer_groups")
DOCUMENTS, SENTENCES_A_DOCUMENT = 8, 40  # of the plane


def read_documents(path: str) -> list[list[str]]:
    """Returns the sentences of each document. Raises ValueError if the file has none."""
    documents: list[list[str]] = [[]]
    for line in read_lines(path):
        if line.strip():
            documents[-1].append(line.strip())
        elif documents[-1]:
            documents.append([])
        if sum(map(len, documents)) == MOST_SENTENCES:
            break
    if not documents[0]:
        raise ValueError(f"{path}: expected sentences, one per line, got no text")
    return [document for document in documents if document]


def choose_blanks(
    sentences: Sequence[str], vocab: Mapping[str, int], lower_case: bool, rng: random.Random
) -> list[tuple[str, str]]:
    """Returns pairs (sentence with [MASK], hidden word): up to four words per sentence, each a single WordPiece."""

    def written(word: str) -> str:
        return word.lower() if lower_case else word

    blanks = []
    for sentence in sentences:
        words = sentence.split()
        places = [place for place, word in enumerate(words) if word.isalpha() and written(word) in vocab]
        if len(words) in WORDS_OF_SENTENCE and "[MASK]" not in sentence:
            blanks += [
                (" ".join([*words[:place], "[MASK]", *words[place + 1 :]]), written(words[place]))
                for place in sorted(rng.sample(places, min(BLANKS_A_SENTENCE, len(places))))
            ]
    return [blanks[place] for place in sorted(rng.sample(range(len(blanks)), min(MOST_BLANKS, len(blanks))))]


def blanks_sections(blanks: Sequence[tuple[str, str]], answers: Sequence[Mapping]) -> Iterator[Section]:
    """Yields a section with some filled blanks, and one with the shares of right guesses beside those of the commonest
    word.
    """
    guesses = [answer["tokens"][0] for answer in answers]
    places = range(0, len(blanks), max(1, len(blanks) // SHOWN_BLANKS))[:SHOWN_BLANKS]
    rows = [
        (
            blanks[place][0],
            blanks[place][1],
            RIGHT if blanks[place][1] in guesses[place] else "",
            SEPARATOR.join(
                f"{RIGHT * (word == blanks[place][1])}{_token(word)} {share:.2f}"
                for word, share in zip(guesses[place], answers[place]["probabilities"][0])
            ),
        )
        for place in places
    ]
    yield Section(
        name="blanks",
        title="Filled blanks",
        values=[list(row) for row in rows],
        header=("sentence", "hidden word", "right", "guesses"),
        rows=rows,
        note=f"{RIGHT} marks the guess that is the hidden word. Tokens stand in quotation marks; ## continues a word.",
    )
    commonest = collections.Counter(hidden for _, hidden in blanks).most_common(1)[0][0]
    counted = []
    for name, chosen_words in (
        (f"up to {SHORT_WORD} letters", lambda word: len(word) <= SHORT_WORD),
        ("longer words", lambda word: len(word) > SHORT_WORD),
        ("all", lambda word: True),
    ):
        pairs = [(hidden, guess) for (_, hidden), guess in zip(blanks, guesses) if chosen_words(hidden)]
        if pairs:
            counted.append(
                (
                    name,
                    len(pairs),
                    float(np.mean([hidden == guess[0] for hidden, guess in pairs])),
                    float(np.mean([hidden in guess for hidden, guess in pairs])),
                    float(np.mean([hidden == commonest for hidden, _ in pairs])),
                )
            )
    header = ("hidden words", "blanks", "first guess right", f"among {GUESSES}", f"always {commonest!r}")
    yield Section(
        name="blanks_counted",
        title="How many blanks are right",
        values=[dict(zip(header, row)) for row in counted],
        header=header,
        rows=counted,
        on_screen=True,
    )


def _token(word: str) -> str:
    """Returns a token in quotation marks, which separate it from the signs around it."""
    return f"“{word}”"


def neighbours_section(
    vectors: np.ndarray, tokenizer: "FullTokenizer", counts: Mapping[str, int], least_count: int
) -> Section:
    """Returns the section with the nearest words by cosine of their embeddings (vectors [V,D]), for words of all
    frequencies.
    """
    words = [
        word for word, count in counts.items() if count >= least_count and len(word) > SHORT_WORD and word.isalpha()
    ]
    if len(words) < 2:
        return Section(
            name="neighbours",
            title="Words that are alike",
            values=[],
            note=f"Needs two words that occur {least_count} times or more in the text.",
        )
    words.sort(key=lambda word: (-counts[word], word))
    ids = [tokenizer.vocab[word] for word in words]
    unit = vectors[ids] / np.linalg.norm(vectors[ids], axis=1, keepdims=True)
    rows = []
    for place in range(0, len(words), max(1, len(words) // SHOWN_WORDS))[:SHOWN_WORDS]:
        likeness = unit @ unit[place]
        near = [other for other in np.argsort(-likeness, kind="stable") if other != place][:NEIGHBOURS]
        rows.append(
            (
                words[place],
                counts[words[place]],
                SEPARATOR.join(f"{words[other]} {likeness[other]:.2f}" for other in near),
            )
        )
    return Section(
        name="neighbours",
        title="Words that are alike",
        values=[list(row) for row in rows],
        header=("word", "times in the text", "nearest words, cosine"),
        rows=rows,
        note=f"By their WordPiece vectors, among {len(words):,} words that occur {least_count} times or more in the "
        "text.",
    )


def attention_weights(encoder: "BertEncoder", inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the attention weights of one text [L,N,S,S]: layer, head, query row, key row."""
    from keras import ops

    from official_bert.layers.attention_mask import make_attention_mask, masked_softmax

    outputs = encoder(inputs)
    mask = make_attention_mask(inputs["input_mask"], left_to_right=encoder.config.attention == "left_to_right")
    return np.stack(
        [
            ops.convert_to_numpy(masked_softmax(layer.attention.scores(x), mask))[0]
            for x, layer in zip([outputs["embedding_output"], *outputs["layer_outputs"]], encoder.transformer_layers)
        ]
    )


def maps_section(weights: np.ndarray, tokens: Sequence[str]) -> Section:
    """Returns the section with the attention maps of one sentence, weights [L,N,S,S]."""
    from official_bert.reports.pictures import maps_picture

    pictures: list[Picture] = []
    for layer, heads in enumerate(weights, 1):
        for first in range(0, len(heads), HEADS_A_PICTURE):
            some = {
                f"layer {layer}, head {number + 1}": heads[number]
                for number in range(first, min(first + HEADS_A_PICTURE, len(heads)))
            }
            pictures.append(maps_picture(some, tokens, f"Attention of {', '.join(some)}"))
    return Section(
        name="attention",
        title="What each head looks at",
        values={"tokens": list(tokens), "weights": weights.tolist()},
        note="Each row is a token; its dark cells are the tokens that it attends to.",
        pictures=pictures,
    )


def kinds_of_places(ids: np.ndarray) -> dict[str, np.ndarray]:
    """Returns kinds of places relative to each row of a text [S], each as [S,S] of 0 and 1.

    The first and the last token are special.
    """
    size = len(ids)
    special = np.isin(np.arange(size), (0, size - 1))
    return {
        "itself": np.eye(size),
        "one before": np.eye(size, k=-1),
        "one after": np.eye(size, k=1),
        "[CLS], [SEP]": np.tile(special, (size, 1)).astype(float),
        "same token elsewhere": ((ids[:, None] == ids) & ~np.eye(size, dtype=bool)).astype(float),
    }


def averages_section(encoder: "BertEncoder", tokenizer: "FullTokenizer", sentences: Sequence[str]) -> Section:
    """Returns the section with the share of each head's attention for each kind of place, beside equal weights."""
    measured: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    even: dict[str, list[float]] = collections.defaultdict(list)
    for sentence in sentences[:MEASURED_SENTENCES]:
        inputs = tokenizer.encode([sentence], max_seq_length=min(LONGEST, encoder.config.max_position_embeddings))
        weights = attention_weights(encoder, inputs)
        for kind, places in kinds_of_places(inputs["input_ids"][0]).items():
            measured[kind].append((weights * places).sum(axis=(-2, -1)) / len(places))  # [L,N]
            even[kind].append(float(places.sum()) / places.size)
    shares = np.mean([measured[kind] for kind in measured], axis=1)  # [kinds,L,N]
    rows: list[list] = [
        [f"layer {layer + 1}, head {head + 1}", *map(float, shares[:, layer, head])]
        for layer, head in np.ndindex(*shares.shape[1:])
    ]
    rows.append(["equal weights", *(float(np.mean(even[kind])) for kind in measured)])
    return Section(
        name="attention_on_average",
        title="Where attention goes on average",
        header=("", *measured),
        rows=rows,
        on_screen=True,
        values=[dict(zip(("head", *measured), row)) for row in rows],
        note=f"Shares over {min(MEASURED_SENTENCES, len(sentences))} sentences; one sentence may be an exception.",
    )


def plane_section(documents: Sequence[Sequence[str]], embed: Callable[[list[str]], np.ndarray]) -> Section:
    """Returns the section with sentences of the longest documents as points in a plane, a color for each document."""
    from sklearn.decomposition import PCA

    from official_bert.reports.pictures import points_picture

    longest = sorted(documents, key=len, reverse=True)[:DOCUMENTS]
    sentences_of = [
        [line for line in document if len(line.split()) >= 5][:SENTENCES_A_DOCUMENT] for document in longest
    ]
    sentences_of = [document for document in sentences_of if len(document) > 1]
    if len(sentences_of) < 2:
        return Section(
            name="plane",
            title="Texts in a plane",
            values=None,
            note="Needs two documents of two sentences of five words.",
        )
    vectors = np.array(
        [answer["embedding"] for answer in embed([line for document in sentences_of for line in document])]
    )
    owner = np.repeat(np.arange(len(sentences_of)), [len(document) for document in sentences_of])
    plane = PCA(2, svd_solver="full").fit_transform(vectors)
    unit = vectors - vectors.mean(axis=0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    likeness = unit @ unit.T - 2 * np.eye(len(unit))
    right = float(np.mean(owner[likeness.argmax(axis=1)] == owner))
    chance = float(np.mean([(np.sum(owner == one) - 1) / (len(owner) - 1) for one in owner]))
    groups = {f"{number + 1}: {document[0]}": plane[owner == number] for number, document in enumerate(sentences_of)}
    values = {
        "nearest_is_of_same_document": right,
        "by_chance": chance,
        "points": {name: own.tolist() for name, own in groups.items()},
    }
    return Section(
        name="plane",
        title="Texts in a plane",
        values=values,
        header=("nearest sentence is of the same document", "by chance"),
        rows=[(right, chance)],
        on_screen=True,
        note="A point is a sentence (the mean of its output vectors), a color is a document; the plane is that of the "
        "two directions in which the sentences differ most (principal components).",
        pictures=[points_picture(groups, "Sentences of several documents in a plane")],
    )


def check_model(path: str) -> None:
    """Raises ValueError for a model without the masked-LM head, and for one whose attention cannot be drawn here."""
    import official_bert
    from official_bert.models.pretrainer import Pretrainer

    model = official_bert.load_model(path)
    if not isinstance(model, Pretrainer):
        raise ValueError(f"--model={path}: expected a model with the masked-LM head, got a {type(model).__name__}")
    config = model.encoder.config
    if config.attention != "bidirectional":
        raise ValueError(
            f"--model={path}: expected a model that reads both sides of a blank, got one that reads from left to right"
        )
    if parts := [key for key in OTHER_ATTENTION if getattr(config, key)] + ["norm"] * (config.norm == "pre"):
        raise ValueError(f"--model={path}: expected a model with BERT's attention, got one with {', '.join(parts)}")


def load_predictor(path: str, vocab_file: str, **options: Any) -> "Predictor":
    """Returns a predictor whose errors name flags."""
    from official_bert.interface.predictor import Predictor, ServingOptions

    return Predictor(path, ServingOptions(**options), vocab_file)


def load_filling(path: str, vocab_file: str) -> "tuple[Predictor, FullTokenizer]":
    """Returns a predictor of blanks and its tokenizer. Raises ValueError for a tokenizer other than WordPiece."""
    from official_bert.text.subwords import tokenizer_files
    from official_bert.text.tokenization import FullTokenizer

    fill = load_predictor(path, vocab_file, top_k=GUESSES)
    assert fill.config is not None  # only an exported model has none, and that was refused
    tokenizer = fill.config.tokenizer
    if tokenizer_files.is_subwords(tokenizer.vocab_file):
        raise ValueError(
            f"--model={path}: expected a model with a WordPiece vocabulary, got one with another tokenizer"
        )
    return fill, FullTokenizer(tokenizer.vocab_file, tokenizer.do_lower_case)


def lines_that_fit(
    fill: "Predictor", encoder: "BertEncoder", sentences: Sequence[str], pieces: Sequence[Sequence[str]]
) -> list[str]:
    """Returns the lines that fit into a row with [CLS] and [SEP]; all lines if none fits."""
    assert fill.config is not None
    most = min(LONGEST, encoder.config.max_position_embeddings, fill.config.options.get("max_seq_length", LONGEST))
    return [line for line, tokens in zip(sentences, pieces) if len(tokens) + 2 <= most] or list(sentences)


def fill_blanks(
    fill: "Predictor", tokenizer: "FullTokenizer", sentences: Sequence[str], path: str
) -> Iterator[Section]:
    """Returns the sections about filled blanks in sentences of the file at `path`.

    Raises ValueError if there is no blank.
    """
    blanks = choose_blanks(sentences, tokenizer.vocab, tokenizer.do_lower_case, random.Random(0))
    # An answer without tokens is of a blank that was cut off with the end of its text.
    filled = [(blank, answer) for blank, answer in zip(blanks, fill([text for text, _ in blanks])) if answer["tokens"]]
    if not filled:
        raise ValueError(
            f"{path}: expected sentences of {min(WORDS_OF_SENTENCE)} to {max(WORDS_OF_SENTENCE)} words, some of "
            "them in the vocabulary, got none"
        )
    return blanks_sections(*zip(*filled))


def attention_sections(
    encoder: "BertEncoder",
    tokenizer: "FullTokenizer",
    sentences: Sequence[str],
    sentence: str,
) -> list[Section]:
    """Returns the sections with the attention maps of `sentence` (or of the first one of 9 to 14 pieces) and with
    averages over all sentences.
    """
    sentence = sentence or next((line for line in sentences if 9 <= len(tokenizer.tokenize(line)) <= 14), sentences[0])
    encoded = tokenizer.encode([sentence], max_seq_length=min(LONGEST, encoder.config.max_position_embeddings))
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"][0].tolist())
    return [maps_section(attention_weights(encoder, encoded), tokens), averages_section(encoder, tokenizer, sentences)]


def main(_: list[str]) -> None:
    """Loads the model, makes the sections and writes the page."""
    from keras import ops

    import official_bert
    from official_bert.reports.page import as_lines, write_report
    from official_bert.run_folder import RunFolder

    if RunFolder(FLAGS.output_dir).has_begun:
        raise ValueError(f"--output_dir={FLAGS.output_dir}: expected a folder for this page, got a run with a report")
    check_model(FLAGS.model)
    documents = read_documents(FLAGS.input_file)
    sentences = list(itertools.chain.from_iterable(documents))
    fill, tokenizer = load_filling(FLAGS.model, FLAGS.vocab_file)
    encoder = official_bert.load_encoder(FLAGS.model, return_layers=True)
    pieces = [tokenizer.tokenize(line) for line in sentences]
    counts = collections.Counter(itertools.chain.from_iterable(pieces))
    embed = load_predictor(FLAGS.model, FLAGS.vocab_file, head="embeddings", pooling="mean")
    fitting = lines_that_fit(fill, encoder, sentences, pieces)
    sections = [
        *fill_blanks(fill, tokenizer, fitting, FLAGS.input_file),
        neighbours_section(
            ops.convert_to_numpy(encoder.embeddings.word_embeddings), tokenizer, counts, FLAGS.least_count
        ),
        *attention_sections(encoder, tokenizer, fitting, FLAGS.sentence),
        plane_section(documents, embed),
    ]
    make_folder(FLAGS.output_dir)
    written = write_report(f"Inside {FLAGS.model}", sections, FLAGS.output_dir, FLAGS.markdown)
    print("\n".join([*as_lines(sections), "", f"written: {', '.join(written)}"]))


if __name__ == "__main__":
    run_main(main)
