"""Measures by language how much of known paragraphs, headings and lists in WikiExtractor's layout prepare_corpus keeps.

    python benchmarks/corpus_yield.py th:xquad.th.json,zh:xquad.zh.json,ja:debian-reference/*.ja.html

A file in SQuAD's format gives paragraphs; an HTML file gives paragraphs (<p>, without a class or of the class
"paragraph"), headings (<h1> to <h6>) and lists (<li>), if at least half of their letters are of the language's script.
Paragraphs are cut at full stops into pieces of one, two and three sentences. Each piece is a line without added spaces,
beside headings (those of the files and usual ones of articles, with the full stop that WikiExtractor gives them) and
lists.
"""

import dataclasses
import glob
import html.parser
import itertools
import json
import re
import sys

import rich.console
import rich.table

from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text import documents, quality

# Headings of articles: history, geography, economy, see also, early life, relations with other countries.
HEADINGS = {
    "en": ["History", "Geography", "Economy", "See also", "Early life", "Relations with other countries"],
    "de": ["Geschichte", "Geographie", "Wirtschaft", "Siehe auch", "Frühe Jahre", "Beziehungen zu anderen Ländern"],
    "ru": ["История", "География", "Экономика", "См. также", "Ранние годы", "Отношения с другими странами"],
    "ar": ["التاريخ", "الجغرافيا", "الاقتصاد", "انظر أيضا", "حياته المبكرة", "العلاقات مع الدول الأخرى"],
    "hi": ["इतिहास", "भूगोल", "अर्थव्यवस्था", "इन्हें भी देखें", "प्रारंभिक जीवन", "अन्य देशों के साथ संबंध"],
    "th": ["ประวัติศาสตร์", "ภูมิศาสตร์", "เศรษฐกิจ", "ดูเพิ่ม", "ชีวิตช่วงต้น", "ความสัมพันธ์กับประเทศอื่น"],
    "zh": ["历史", "地理", "经济", "参见", "早年生活", "与其他国家的关系"],
    "ja": ["歴史", "地理", "経済", "関連項目", "若年期", "他国との関係"],
}
TRANSLATED = quality.QualityLimits(min_script=0.5)
LIST_MARKS = ("BULLET::::- ", "* ", "- ", "1. ")


@dataclasses.dataclass
class Texts:
    """The known texts of a file."""

    paragraphs: list[str] = dataclasses.field(default_factory=list)
    headings: list[str] = dataclasses.field(default_factory=list)
    items: list[str] = dataclasses.field(default_factory=list)


class PageReader(html.parser.HTMLParser):
    """Collects the texts of <p>, <h1> to <h6> and <li>, except inside tables and code."""

    def __init__(self, texts: Texts):
        super().__init__()
        self.texts, self.text, self.kind = texts, "", ""
        self.stack: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag in ("p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "table", "pre"):
            self.stack.append(tag)
            self.text, self.kind = "", dict(attrs).get("class", "paragraph")

    def handle_data(self, data):
        self.text += data

    def handle_endtag(self, tag):
        if tag in self.stack:
            text = " ".join(self.text.split())
            within = {"table", "pre"} & set(self.stack)
            into = (
                self.texts.headings
                if tag[0] == "h"
                else self.texts.items
                if "li" in self.stack
                else self.texts.paragraphs
                if (tag, self.kind) == ("p", "paragraph")
                else []
            )
            text = re.sub(r"^(?:\w+ )?(?:\w\.)?(?:\d+\.)* |[¶#]$", "", text).strip() if tag[0] == "h" else text
            if not within and (tag[0] == "h" or "li" in self.stack or re.search(r"[.!?。！？।؟]$", text)):
                into.append(text)  # a paragraph without an end is a caption
            while self.stack.pop() != tag:
                pass
            self.text = ""


def read_texts(path: str, language: str) -> Texts:
    """Returns the known texts of a SQuAD or HTML file."""
    texts = Texts()
    with open(path, encoding="utf-8") as file:
        if path.endswith(".json"):
            for article in json.load(file)["data"]:
                texts.paragraphs += [" ".join(row["context"].split()) for row in article["paragraphs"]]
        else:
            PageReader(texts).feed(file.read())
    for kind in (texts.paragraphs, texts.headings):  # drops text that was never translated
        kind[:] = [text for text in kind if not TRANSLATED.reason_to_drop([text], 1, language)]
    return texts


def short_paragraphs(paragraph: str, sizes: itertools.cycle) -> list[str]:
    """Returns the paragraph cut after full stops into parts of one, two, three sentences in turn."""
    sentences = (
        re.findall(r".+?(?:[.!?؟](?=\s+[^a-zäöüß])|[。！？।]|$)\s*", paragraph)
        if re.search(r"[.!?。！？।؟]", paragraph)
        else [part + " " for part in re.findall(r".{60,}?(?:\s|$)|.+$", paragraph)]  # Thai
    )
    parts = []
    while sentences:
        size = next(sizes)
        parts.append("".join(sentences[:size]).strip())
        sentences = sentences[size:]
    return parts


def measure(language: str, paths: list[str]) -> tuple[list[str], bool]:
    """Returns a row of the table and whether it meets the goals: 98 % of paragraphs kept, 2 % of articles' headings."""
    sizes, cleaner = itertools.cycle((1, 2, 3)), documents.Cleaner(language, shortest=1)
    counts: dict[str, list[int]] = {}
    for path in paths:
        texts = read_texts(path, language)
        parts = [part for paragraph in texts.paragraphs for part in short_paragraphs(paragraph, sizes)]
        lines = {
            "paragraphs": parts,
            "headings": [f"{heading}." for heading in HEADINGS[language]],
            "headings of the files": [heading + "." * (heading[-1:] not in "!?") for heading in texts.headings],
            "lists": [mark + item for mark, item in zip(itertools.cycle(LIST_MARKS), texts.items)],
        }
        page = documents.Document([line for kind in lines.values() for line in kind], headings=True)
        kept_lines = {
            "".join("".join(sentences).split()) for sentences in cleaner.clean_paragraphs(page, YieldReport())
        }
        for kind, members in lines.items():
            squeezed = ["".join(line.split()) for line in members]
            characters = sum(len(line) for line in squeezed if line in kept_lines)
            total = counts.setdefault(kind, [0, 0])
            total[0] += characters
            total[1] += sum(map(len, squeezed))
    shares = {kind: characters / size if size else 0.0 for kind, (characters, size) in counts.items()}
    row = [language, *(f"{shares[kind]:.1%} of {counts[kind][1]:,}" if counts[kind][1] else "" for kind in counts)]
    return row, shares["paragraphs"] >= 0.98 and shares["headings"] <= 0.02


def main() -> None:
    """Prints a row for each language."""
    table = rich.table.Table(
        "language", "paragraphs kept", "headings of articles", "the files' own headings", "lists", title="by characters"
    )
    good = True
    for argument in ",".join(sys.argv[1:]).split(","):
        language, pattern = argument.split(":", 1)
        row, met = measure(language, sorted(glob.glob(pattern, recursive=True)))
        table.add_row(*row)
        good &= met
    rich.console.Console(width=120).print(table)
    if not good:
        raise SystemExit("aim missed: 98 % of paragraphs, at most 2 % of headings")


if __name__ == "__main__":
    main()
