"""A corpus of another language becomes a model by the commands of docs/start/text.md; the first says what helps."""

import json
import random
import re

import pytest
from test_from_text import predict
from test_raw_text_to_training import CUT_OFF

CONFIG = """\
task: pretraining
model: {vocab_size: SIZE, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 4, intermediate_size: 64,
        max_position_embeddings: 32, initializer_range: 0.15, hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0}
options: {max_seq_length: 32, max_predictions_per_seq: 4, first_weights: neighbours}
optimizer: {learning_rate: 0.015, warmup_steps: 30, beta_2: 0.98}
training: {batch_size: 32, steps: 300, log_every: 100, save_every: 300}
"""
# Who does what; a frame, who owns them, where.
WORLDS = {
    "vi": (
        {"chó": "sủa", "mèo": "kêu", "bò": "rống", "chim": "hót"},
        "{owner} bán một con {who} {does} ở {where}.",
        ("Bạn tôi", "Cô ấy", "Bác Nam", "Bàn tay anh"),
        ("chợ", "làng", "đồng", "nhà"),
    ),
    "ru": (
        {"собака": "лает", "корова": "мычит", "лошадь": "ржёт", "птица": "поёт"},
        "{owner} {who} {does} в этот день {where}.",
        ("Мой сын слышит, что", "Мои дети слышат, что", "Твой брат знает, что", "Твои братья знают, что"),
        ("за рекой", "на улице", "у майора", "в тихой деревне"),
    ),
}
ASKED = {
    "vi": ("Cô ấy bán một con chó [MASK] ở chợ.", {"sủa", "chợ", "bán", "bạn", "bàn", "ở"}),
    "ru": ("Мой сын слышит, что корова [MASK] в этот день на улице.", {"мой", "мои", "твой", "твои", "ржёт"}),
}


def write_corpus(path, language):
    """Writes documents of eight sentences about who does what."""
    does, frame, owners, places = WORLDS[language]
    rng = random.Random(0)

    def sentence():
        who = rng.choice(list(does))
        return frame.format(owner=rng.choice(owners), who=who, does=does[who], where=rng.choice(places))

    documents = ({"text": " ".join(sentence() for _ in range(8))} for _ in range(150))
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in documents), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("language", WORLDS)
def test_each_command_is_right_at_the_first_attempt(person, language):
    write_corpus(person.folder / "raw.jsonl", language)
    prepare = "python tools/prepare_corpus.py --input_file=raw.jsonl --output_file=corpus.txt --num_workers=1"
    said = person.types(prepare).out
    assert re.search(rf"raw\.jsonl: {language} \((100|9\d)% sure\)", said)
    keep = re.search(r"(--do_lower_case=False) keeps them: use it in all commands", said)[1]
    said = person.types(
        "python tools/build_vocab.py --input_file=corpus.txt --output_file=vocab.txt --vocab_size=300 --num_unused=0 "
        f"--num_workers=1 {keep}"
    ).out
    size = re.search(r"set model.vocab_size to (\d+)", said)[1]
    (person.folder / "tiny.yaml").write_text(CONFIG.replace("SIZE", size), encoding="utf-8")
    blank, words = ASKED[language]
    entries = {entry.lower() for entry in (person.folder / "vocab.txt").read_text(encoding="utf-8").split()}
    assert words <= entries
    person.types(
        "python tools/create_pretraining_data.py --input_file=corpus.txt --output_file=train.tfrecord "
        f"--vocab_file=vocab.txt --max_seq_length=32 --max_predictions_per_seq=4 --dupe_factor=5 {keep}",
        messages=(CUT_OFF,),
    )
    person.types(
        "python -m official_bert.run_pretraining --config=tiny.yaml --input_file=train.tfrecord --vocab_file=vocab.txt "
        f"--output_dir=runs/tiny {keep}"
    )
    [answer] = predict(person, "fill_mask", "runs/tiny", [{"text": blank}])
    assert answer["tokens"][0][0] in WORLDS[language][0].values()  # a verb, with all its letters
