"""Data about a small world: animals make sounds, people live in cities. A tiny model can learn all of it."""

import json
import random

SOUNDS = {"dog": "barks", "cow": "moos", "cat": "meows", "duck": "quacks", "lion": "roars", "wolf": "howls"}
WILD = ("lion", "wolf")
NAMES = ("Anna", "Paul", "Maria", "Peter")
CITIES = ("Rome", "Oslo", "Cairo", "Lima")


def somebody(draw, held_out=False):
    """Draws a name and a city; every fourth pair is held out."""
    pairs = [
        (name, city)
        for row, name in enumerate(NAMES)
        for column, city in enumerate(CITIES)
        if (row == column) == held_out
    ]
    return draw.choice(pairs)


def any_animal(draw):
    """Draws an animal."""
    return draw.choice(list(SOUNDS))


def about_an_animal(draw, animal):
    """Draws a sentence about it."""
    sound = SOUNDS[animal]
    return draw.choice(
        (f"The {animal} {sound}.", f"A young {animal} {sound} at night.", f"We hear that the {animal} {sound}.")
    )


def about_a_person(draw, name, city):
    """Draws a sentence that names both."""
    return draw.choice(
        (f"{name} lives in {city}.", f"We hear that {name} works in {city}.", f"The young {name} lives in {city}.")
    )


def write_corpus(path, documents=160, seed=0):
    """Writes raw text as JSON lines, one document a line, each about one animal or about one person in one city."""
    draw = random.Random(seed)
    with open(path, "w", encoding="utf-8") as file:
        for number in range(documents):
            (name, city), animal = somebody(draw), any_animal(draw)
            sentences = [
                about_a_person(draw, name, city) if number % 2 else about_an_animal(draw, animal) for _ in range(4)
            ]
            sentences[-1] = draw.choice((f"Where is {name}?", f"Who lives in {city}?")) if number % 2 else sentences[-1]
            file.write(json.dumps({"text": " ".join(sentences)}) + "\n")


def heard(count, seed):
    """Returns (text, whether its animal is wild) pairs; the texts contain commas and quotation marks."""
    draw = random.Random(seed)
    animals = [any_animal(draw) for _ in range(count)]
    return [
        (f'{draw.choice(NAMES)}, in {draw.choice(CITIES)}: "{about_an_animal(draw, animal)}"', animal in WILD)
        for animal in animals
    ]


def write_questions(path, count, seed, held_out=False):
    """Writes SQuAD 1.1: questions for the place of a person and the person of a place. Returns the answers by id."""
    draw = random.Random(seed)
    paragraphs, answers = [], {}
    for number in range(count):
        name, city = somebody(draw, held_out)
        context = " ".join((about_an_animal(draw, any_animal(draw)), about_a_person(draw, name, city)))
        wanted = {
            f"{path.stem}-where-{number}": (f"Where is {name}?", city),
            f"{path.stem}-who-{number}": (f"Who lives in {city}?", name),
        }
        paragraphs.append(
            {
                "context": context,
                "qas": [
                    {
                        "id": key,
                        "question": question,
                        "answers": [{"text": answer, "answer_start": context.index(answer)}],
                    }
                    for key, (question, answer) in wanted.items()
                ],
            }
        )
        answers |= {key: answer for key, (_, answer) in wanted.items()}
    path.write_text(
        json.dumps({"version": "1.1", "data": [{"title": "toy", "paragraphs": paragraphs}]}), encoding="utf-8"
    )
    return answers


def write_tagged(path, count, seed, held_out=False):
    """Writes CoNLL columns with persons and places; a third of the sentences has none, unless pairs are held out."""
    draw = random.Random(seed)
    texts = [
        about_a_person(draw, *somebody(draw, held_out))
        if held_out or number % 3
        else about_an_animal(draw, any_animal(draw))
        for number in range(count)
    ]
    rows = [[*text.removesuffix(".").split(), "."] for text in texts]
    tags = {**dict.fromkeys(NAMES, "B-PER"), **dict.fromkeys(CITIES, "B-LOC")}
    path.write_text(
        "\n\n".join("\n".join(f"{word} {tags.get(word, 'O')}" for word in words) for words in rows) + "\n",
        encoding="utf-8",
    )
