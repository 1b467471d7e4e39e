"""Counts where 2018's written answer (`predictions.json`) differs from the slice of the passage that a served model
gives.

    python benchmarks/answer_slices.py --input_file=dev-v1.1.json --vocab_file=vocab.txt

Both represent the same tokens: those of each answer in the file. 2018 joins the words of the passage with one space and
searches the tokens' text in them; if it is not found, whole words are written.
"""

from official_bert.command_line import run_main

import collections
from collections.abc import Iterator

from absl import flags

from official_bert.tasks.squad.alignment import answer_pieces
from official_bert.tasks.squad.decoding import Span, span_text
from official_bert.tasks.squad.features import FeatureMaker
from official_bert.tasks.squad.reading import SquadExample, answer_words, read_squad, split_words
from official_bert.text.tokenization import FullTokenizer

FLAGS = flags.FLAGS
flags.DEFINE_string("input_file", None, "A file in the SQuAD format.", required=True)
flags.DEFINE_string("vocab_file", None, "The vocabulary.", required=True)
flags.DEFINE_bool("do_lower_case", True, "Whether the vocabulary is of lower-cased text.")
flags.DEFINE_integer("examples", 3, "Differences shown of each kind.")


def answers(path: str) -> Iterator[SquadExample]:
    """Gives each distinct answer in the file with the words that contain it."""
    for article in read_squad(path).articles:
        for paragraph in article["paragraphs"]:
            passage = split_words(paragraph["context"])
            for question in paragraph["qas"]:
                for text, start in sorted({(answer["text"], answer["answer_start"]) for answer in question["answers"]}):
                    first, last = answer_words(passage, text, start)
                    if first >= 0:
                        yield SquadExample(question["id"], question["question"], passage, text, first, last)


def kind_of(slice_: str, written: str) -> str:
    """Returns the kind of difference in words."""
    if " ".join(slice_.split()) == written:
        return "the passage has more than single spaces between words"
    if written.replace(slice_, "") != written:
        return "2018 writes whole words, because its alignment failed"
    return "other"


def main(_) -> None:
    """Counts and shows the differences."""
    tokenizer = FullTokenizer(FLAGS.vocab_file, FLAGS.do_lower_case)
    maker = FeatureMaker(tokenizer, max_seq_length=10**6, doc_stride=10**6)
    total, shown = 0, collections.defaultdict(list)
    passage, offsets = None, []
    for example in answers(FLAGS.input_file):
        if example.passage is not passage:
            passage = example.passage
            offsets = tokenizer.tokenize_with_offsets(passage.context)
        pieces = maker.pieces(passage)
        assert [token for token, _, _ in offsets] == list(pieces.tokens)
        first, last = answer_pieces(pieces, example, tokenizer)
        feature = maker.windows(0, [], pieces)[0]
        shift = feature.first_position
        written = span_text(example, feature, Span(0, first + shift, last + shift, 0.0, 0.0), FLAGS.do_lower_case)
        slice_ = passage.context[offsets[first][1] : offsets[last][2]]
        total += 1
        if slice_ != written:
            shown[kind_of(slice_, written)].append((example.qas_id, slice_, written))
    print(f"{total} answers, {sum(map(len, shown.values()))} of them written otherwise by 2018")
    for kind, rows in shown.items():
        print(f"  {len(rows)}: {kind}")
        for name, slice_, written in rows[: FLAGS.examples]:
            print(f"    {name}: slice {slice_!r}, 2018 {written!r}")


if __name__ == "__main__":
    run_main(main)
