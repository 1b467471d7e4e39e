"""Ordinary tables, as people export them: each with the options that a person has in mind, and its number of rows."""

import csv
import io
import json
import pathlib
import random

# fmt: off
WORDS = [
    "the", "a", "this", "that", "my", "our", "room", "phone", "order", "food", "service", "hotel", "screen",
    "battery", "price", "staff", "delivery", "camera", "was", "is", "seems", "looks", "arrived", "broke",
    "works", "tastes", "very", "quite", "too", "never", "always", "again", "good", "bad", "slow", "quick",
    "late", "early",
]
GERMAN = [
    "die", "das", "der", "Lieferung", "Ware", "Qualität", "Größe", "passt", "leider", "kaputt", "schnell",
    "langsam", "gut", "schlecht", "günstig", "teuer", "sehr", "nicht", "wieder", "Händler", "überhaupt",
    "Gerät", "schön",
]
RUSSIAN = [
    "доставка", "товар", "качество", "очень", "плохое", "хорошее", "быстро", "медленно", "магазин", "размер",
    "цвет", "цена", "доволен", "снова", "никогда",
]
# fmt: on
CHINESE = "这个产品非常好用质量不错物流很快客服态度差再也不会购买了推荐给朋友价格便宜"


class Maker:
    """Makes rows of a table by a seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def text(self, words=WORDS, least=5, most=14):
        return " ".join(
            self.rng.choice(words) for _ in range(self.rng.randint(least, most))
        ).capitalize() + self.rng.choice([".", "!", "", ", I think."])

    def chinese(self):
        return "".join(self.rng.choice(CHINESE) for _ in range(self.rng.randint(8, 24)))

    def date(self):
        return f"2024-{self.rng.randint(1, 12):02}-{self.rng.randint(1, 28):02}"

    def key(self):
        return f"{self.rng.getrandbits(64):016x}"

    def name(self):
        return (
            self.rng.choice(["Anna", "Ben", "Chen", "Dora"]) + " " + self.rng.choice(["Meier", "Li", "Novak", "Silva"])
        )


def columns_of(make):
    """Yields (name, columns, text, label, more options): functions by name of column."""
    rng = make.rng
    stars = lambda row: rng.choice([1, 2, 3, 4, 5])  # noqa: E731
    mood = lambda row: rng.choice(["positive", "negative", "neutral"])  # noqa: E731
    spam = lambda row: rng.choice(["ham", "spam"])  # noqa: E731
    team = lambda row: rng.choice(["billing", "technical", "sales", "other"])  # noqa: E731
    binary = lambda row: rng.choice([0, 1])  # noqa: E731
    text = lambda row: make.text()  # noqa: E731
    long = lambda row: make.text(least=30, most=70)  # noqa: E731
    german = lambda row: make.text(GERMAN)  # noqa: E731
    number = lambda row: row + 1  # noqa: E731
    date, key, name = lambda row: make.date(), lambda row: make.key(), lambda row: make.name()
    yield {"text": text, "label": binary}, "text", "label"
    yield {"label": mood, "text": text}, "text", "label"
    yield {"review": long, "stars": stars}, "review", "stars"
    yield {"id": number, "review": text, "rating": stars, "date": date}, "review", "rating"
    yield {"Review": long, "Rating": stars, "Author": name, "Date": date}, "Review", "Rating"
    yield {"ticket_id": key, "created": date, "message": text, "category": team}, "message", "category"
    yield {"utterance": text, "intent": lambda row: f"intent_{row % 120}"}, "utterance", "intent"
    yield (
        {"query": text, "intent": lambda row: rng.choice(["book flight", "cancel order", "get help"])},
        "query",
        "intent",
    )
    yield {"v1": spam, "v2": text}, "v2", "v1"
    yield (
        {"Nachricht": german, "Kategorie": team, "Preis": lambda row: f"{rng.randint(1, 99)},90"},
        "Nachricht",
        "Kategorie",
    )
    yield {"Nr.": number, "Kommentar": german, "Bewertung": stars}, "Kommentar", "Bewertung"
    yield {"отзыв": lambda row: make.text(RUSSIAN), "оценка": stars}, "отзыв", "оценка"
    yield {"评论": lambda row: make.chinese(), "标签": binary}, "评论", "标签"
    yield {"": number, "tweet": text, "sentiment": mood, "user": key}, "tweet", "sentiment"
    yield (
        {
            "premise": text,
            "hypothesis": text,
            "label": lambda row: rng.choice(["entailment", "neutral", "contradiction"]),
        },
        "premise",
        "label",
    )
    yield {"id": number, "question1": text, "question2": text, "is_duplicate": binary}, "question1", "is_duplicate"
    yield {"url": lambda row: f"https://shop.org/p/{make.key()}", "text": text, "label": spam}, "text", "label"
    yield {"email": lambda row: f"{make.key()}@mail.org", "body": long, "class": spam, "sent": date}, "body", "class"
    yield {"text": text, "label": binary, "split": lambda row: rng.choice(["train", "test"])}, "text", "label"
    yield {"comment": text, "toxic": binary}, "comment", "toxic"


FORMS = (
    "csv",
    "semicolon.csv",
    "tsv",
    "jsonl",
    "json",
    "parquet",
    "xlsx",
    "headless.csv",
    "cp1252.csv",
    "utf16.csv",
    "gz",
)


def write(path: pathlib.Path, names, rows, form):
    """Writes a table in a form; returns its path, or None if the form cannot hold it."""
    path = path.with_name(path.name + {"gz": ".csv.gz"}.get(form, "." + form.rpartition(".")[2]))
    objects = [dict(zip(names, row)) for row in rows]
    if form in ("jsonl", "json"):
        path.write_text(
            "".join(json.dumps(row) + "\n" for row in objects) if form == "jsonl" else json.dumps(objects, indent=1)
        )
    elif form == "parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(objects), path)
    elif form == "xlsx":
        import openpyxl

        book = openpyxl.Workbook()
        for row in (names, *rows):
            book.active.append(list(row))
        book.save(path)
    else:
        file = io.StringIO()
        mark = {"semicolon.csv": ";", "tsv": "\t", "utf16.csv": "\t"}.get(form, ",")
        csv.writer(file, delimiter=mark).writerows([*([] if form.startswith("headless") else [names]), *rows])
        content = file.getvalue().encode({"cp1252.csv": "cp1252", "utf16.csv": "utf-16"}.get(form, "utf-8"), "replace")
        if form == "gz":
            import gzip

            content = gzip.compress(content)
        path.write_bytes(content)
    return path


def ordinary_tables(folder: pathlib.Path, seed=0):
    """Writes 60 tables: 20 sets of columns, each in three forms. Yields path, options that read it, number of rows."""
    make = Maker(seed)
    for number, (columns, text, label) in enumerate(columns_of(make)):
        count = 360 if "intent" in columns else make.rng.choice([40, 90, 200])
        rows = [[value(row) for value in columns.values()] for row in range(count)]
        names = list(columns)
        for turn in range(3):
            form = FORMS[(3 * number + turn) % len(FORMS)]
            first = "".join(map(str, rows[0]))
            fits = first.encode("cp1252", "ignore").decode("cp1252") == first
            if (form == "cp1252.csv" and not fits) or (form == "headless.csv" and "" in names):
                form = "csv"
            path = write(folder / f"t{number}_{turn}", names, rows, form)
            name_of = {
                name: f"c{place}" if form.startswith("headless") else name for place, name in enumerate(names, 1)
            }
            pair = {"premise": "hypothesis", "question1": "question2"}.get(text)
            yield (
                path,
                {
                    "text_column": name_of[text],
                    "label_column": name_of[label],
                    "text_pair_column": name_of.get(pair, ""),
                },
                count,
            )
