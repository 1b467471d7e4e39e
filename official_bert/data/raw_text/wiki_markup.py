"""Removes what WikiExtractor leaves in the text of articles: entities of HTML, and tags of MediaWiki and HTML."""

import html
import re

from official_bert.data.pretraining.yield_report import YieldReport

# With a semicolon: html.unescape alone would read "&copy=" in an address as a sign too.
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,31});")
_NAMES = ("abbr|bdi|bdo|big|blockquote|caption|categorytree|ce|cite|center|chem|code|dd|del|dfn|dl|dt|em|font|gallery|graph|h[1-6]|hiero|"
          "imagemap|includeonly|indicator|inputbox|ins|kbd|mapframe|maplink|math|noinclude|nowiki|ol|onlyinclude|phonos|poem|pre|rb|ref|"
          "references|rp|rt|rtc|ruby|samp|score|section|small|source|span|strike|strong|sub|sup|syntaxhighlight|templatedata|"
          "templatestyles|timeline|tt|ul|var|wbr")
_BREAKS = "br|div|hr|li|p|table|td|th|tr"  # words on both sides of these are two
# Names of one letter only without attributes: "x <b and b> c" is mathematics. A comment may hold anything.
_TAG = re.compile(rf"<!--.*?-->|</?(?:{_NAMES})(?:\s[^<>]*)?/?>|</?[abiqsu]\s*/?>", re.IGNORECASE)
_BREAK = re.compile(rf"</?(?:{_BREAKS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
ENTITIES, TAGS = "entities of HTML replaced by their characters", "left-over tags removed"


def without_markup(line: str, report: YieldReport) -> str:
    """Returns a line of an article as its reader sees it: entities replaced once, then tags removed; the report counts both."""
    text = line
    if "&" in line and (entities := sum(html.unescape(entity) != entity for entity in _ENTITY.findall(line))):
        report.note(ENTITIES, line, entities=entities)
        text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), line)
    if "<" not in text:
        return text
    cleaned, tags = _TAG.subn("", text)
    cleaned, breaks = _BREAK.subn(" ", cleaned)
    if tags or breaks:
        report.note(TAGS, text, tags=tags + breaks)
    return cleaned

