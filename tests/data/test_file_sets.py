"""Files that were probably not meant to be read together are noticed by their names."""

from official_bert.data.file_sets import doubts


def test_shards_of_two_generations_are_noticed_and_parts_of_one_are_not():
    old, new = ([f"a/train-{number:05}-of-{count:05}" for number in range(count)] for count in (4, 2))
    assert doubts(old) == doubts(new[1:]) == doubts([*new, "a/other-00000-of-00004", "b/train-00000-of-00004", "a/train"]) == []
    assert doubts([*old, *new]) == ["a/train: files of 2 and of 4 are read together (-of-00002 and -of-00004); are those of an earlier "
                                    "command among them?"]


def test_held_out_documents_among_the_others_are_noticed():
    told = ["a/held_out-corpus.txt: documents that were held out are read together with the others"]
    assert doubts(["a/corpus.txt", "a/held_out-corpus.txt"]) == doubts(["a/held_out-corpus.txt", "a/corpus.txt-00000-of-00001"]) == told
    assert doubts(["a/held_out-corpus.txt"]) == doubts(["b/corpus.txt", "a/held_out-corpus.txt"]) == []
