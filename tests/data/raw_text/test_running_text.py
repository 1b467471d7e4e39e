"""Pages as WikiExtractor writes them, from paragraphs and headings that are known."""

import html

import pytest
from made_text import clean

from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text import documents, running_text, scripts

# Three sentences of each language, then headings.
TEXTS = {
    "en": (
        [
            "The city lies on the northern bank of the river.",
            "It was founded by merchants in the twelfth century, and soon grew rich.",
            "Today about two million people live there with their families.",
        ],
        ["History", "Early life", "Relations with other countries"],
    ),
    "de": (
        [
            "Die Stadt liegt am nördlichen Ufer des großen Flusses.",
            "Sie wurde im zwölften Jahrhundert von Kaufleuten gegründet und bald reich.",
            "Heute leben dort ungefähr zwei Millionen Menschen mit ihren Familien.",
        ],
        ["Geschichte", "Siehe auch", "Beziehungen zu anderen Ländern"],
    ),
    "ru": (
        [
            "Город расположен на северном берегу большой реки на равнине.",
            "Он был основан купцами в двенадцатом веке и вскоре разбогател.",
            "Сегодня там живёт со своими семьями около двух миллионов человек.",
        ],
        ["История", "См. также", "Отношения с другими странами"],
    ),
    "ar": (
        [
            "تقع المدينة على الضفة الشمالية للنهر الكبير في السهل.",
            "أسسها التجار في القرن الثاني عشر وسرعان ما أصبحت غنية.",
            "ويعيش فيها اليوم حوالي مليوني نسمة من السكان.",
        ],
        ["التاريخ", "انظر أيضا", "العلاقات مع الدول الأخرى"],
    ),
    "hi": (
        [
            "यह शहर नदी के उत्तरी किनारे पर स्थित है।",
            "इसकी स्थापना बारहवीं शताब्दी में व्यापारियों ने की थी।",
            "आज वहाँ लगभग बीस लाख लोग रहते हैं।",
        ],
        ["इतिहास", "भूगोल", "अन्य देशों के साथ संबंध"],
    ),
    "th": (
        [
            "เมืองนี้ตั้งอยู่ทางฝั่งเหนือของแม่น้ำสายใหญ่ในที่ราบ",
            "ก่อตั้งขึ้นโดยพ่อค้าในศตวรรษที่สิบสองและร่ำรวยขึ้นอย่างรวดเร็ว",
            "ปัจจุบันมีประชากรอาศัยอยู่ที่นั่นประมาณสองล้านคน",
        ],
        ["ประวัติศาสตร์", "ภูมิศาสตร์", "ความสัมพันธ์กับประเทศอื่น"],
    ),
    "zh": (
        ["这座城市位于河的北岸。", "它由商人在十二世纪建立，很快就富裕起来。", "今天约有两百万人住在那里。"],
        ["历史", "参见", "与其他国家和地区的外交关系"],
    ),
    "ja": (
        [
            "この都市は川の北岸に位置している。",
            "十二世紀に商人によって設立され、すぐに豊かになった。",
            "今日では約二百万人がそこに住んでいる。",
        ],
        ["歴史", "関連項目", "他国との関係とインターネット・コミュニティー"],
    ),
}


def page(language):
    """An article with paragraphs of one, two and three sentences, headings with a full stop before each, and a list."""
    sentences, headings = TEXTS[language]
    between = "" if language in ("zh", "ja", "th") else " "
    paragraphs = [sentences[1], between.join(sentences[:2]), between.join(sentences), *(sentences * 2)]
    lines = [line for number, text in enumerate(paragraphs) for line in (headings[number % 3] + ".", text)]
    items = ["BULLET::::- " + sentences[0], "* " + sentences[1], "1. " + sentences[2], "१. " + sentences[0]]
    return paragraphs, ["Title", "", *lines, *items]


@pytest.mark.parametrize("language", TEXTS)
def test_paragraphs_of_any_script_stay_and_headings_and_lists_go(language, tmp_path):
    paragraphs, lines = page(language)
    path = tmp_path / "wiki_00"
    path.write_text("\n".join(['<doc id="1" url="http://x/1" title="Title">', *lines, "</doc>"]) + "\n")
    [document] = documents.read_documents(str(path))
    report = YieldReport()
    sentences = clean(documents.Cleaner(language), document, report)
    kept = "".join("".join(sentences).split())
    assert kept == "".join("".join(paragraphs).split())
    dropped = {reason: entry.amounts["characters"] for reason, entry in report.dropped.items()}
    assert set(dropped) <= {documents.TITLES, running_text.HEADING, running_text.LIST_ITEM, running_text.SHORT}
    assert report.balance("characters")["in"] == sum(len("".join(line.split())) for line in lines)
    assert report.warnings() == []
    assert len(sentences) >= 10


def test_keep_everything_keeps_everything():
    document = documents.Document(["Early history.", "* item", "12", "| a | b |"], title="Tea & cake", headings=True)
    report = YieldReport()
    assert clean(documents.Cleaner(keep_everything=True, shortest=1), document, report) == [
        "Tea & cake",
        "Early history.",
        "* item",
        "12",
        "| a | b |",
    ]
    assert report.balance("characters")["dropped"] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a ten-year plan.", 6),
        ("北京是首都。", 5),
        ("ประวัติศาสตร์ไทย", 1),
        ("नमस्ते दुनिया।", 2),
        ("東京へ行く", 5),
        ("soft\u00adhyphen", 1),
        ("...!?", 0),
    ],
)
def test_words_are_those_of_the_tokenizer_without_punctuation(text, words):
    assert scripts.WordCounter()(text) == words


def test_combining_vowels_are_letters():
    text = "मिली हुई कितनी ही चीज़ें हैं 2,34,567.8901।"  # fewer than half of the characters are letters without them
    assert running_text.ParagraphFilter().reason_to_drop(text) == ""
    assert running_text.ParagraphFilter().reason_to_drop("1901 12 13 1902 14 15 1903 17 18.") == running_text.NO_LETTERS


def test_an_article_without_a_title_line_loses_nothing(tmp_path):
    path = tmp_path / "wiki_00"
    title = 'Tea "&" cake'
    text = "Tea is a drink made from the leaves of a plant, hot or cold."
    path.write_text(
        f'<doc id="1" title="{html.escape(title, quote=False)}">\n{text}\n{text}\n</doc>\n'
        f'<doc id="2" title="Stub">\nStub\n{text}\n</doc>\nstray\n'
    )
    first, second = documents.read_documents(str(path))
    assert first.paragraphs == [text, text] and first.title == ""
    assert second.paragraphs == [text] and second.title == "Stub"


def test_a_document_of_too_few_sentences_is_a_loss_and_a_heading_is_none():
    report = YieldReport()
    cleaner = documents.Cleaner()
    assert clean(cleaner, documents.Document(["One sentence that stands alone here."]), report) == []
    assert clean(cleaner, documents.Document(["Title"]), report) == []
    assert report.balance("documents") == {"in": 2, "repeated": 0, "out": 0, "dropped": 2}
    assert report.warnings() == [
        "100.0% of the characters of running text were dropped: documents of fewer than 3 sentences 86.1%"
    ]


def test_a_heading_of_two_scripts_is_measured_by_both():
    is_dropped = running_text.ParagraphFilter(headings=True).reason_to_drop
    # Two Latin words and 17 kana and Han, 5.4 words together; four and 20 of them, 8 words.
    assert is_dropped("experimental からのパッケージと共に、unstable を追いかける.") == running_text.HEADING
    assert is_dropped("The experimental distribution and " + "からのパッケージと共に" * 2 + ".") == ""
    assert is_dropped("bash(1) を参照。") == ""  # its own full stop ends no heading
