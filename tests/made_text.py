"""Cleaned text, for tests of its parts."""


def clean(cleaner, document, report):
    """Returns the sentences of a document, none if it is dropped; counts both cases in `report`, as prepare_corpus
    does.
    """
    paragraphs = cleaner.clean_paragraphs(document, report)
    if paragraphs:
        report.keep(**cleaner.amounts(paragraphs))
    return [sentence for sentences in paragraphs for sentence in sentences]
