"""What small files claim is bounded: each bound is kept, one beyond it is refused, and SECURITY.md has them all."""

import ast
import dataclasses
import inspect
import itertools
import json
import pathlib
import subprocess
import sys
import time
import zipfile

import pytest
from made_tokenizers import byte_bpe, word_pieces

from official_bert import command_line, json_values, limits
from official_bert.config import load_config
from official_bert.data.tabular import formats
from official_bert.data.tabular.tables import TableOptions
from official_bert.model_config import ModelConfig
from official_bert.models.interchange.projects import hugging_face
from official_bert.runtimes import engines
from official_bert.text import loading
from official_bert.text.subwords.byte_bpe import byte_letters, merges
from official_bert.typed_values import read_yaml

ROOT = pathlib.Path(__file__).parent.parent
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def rows_of_limits():
    """The rows of SECURITY.md's table, from the constants and the strings below them."""
    body = ast.parse(inspect.getsource(limits)).body
    for constant, meaning in itertools.pairwise(body):
        if isinstance(constant, ast.Assign):
            name = constant.targets[0].id
            yield f"| `{name}` | {getattr(limits, name):,} | {meaning.value.value} |"


def test_the_table_of_bounds_in_security_md_is_that_of_the_code():
    expected = ["| bound | at most | of |", "|---|---|---|", *rows_of_limits()]
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("### Bounds")[2].splitlines()
    assert [line for line in page if line.startswith("|")] == expected, "\n".join(expected)
    named = [name for name in vars(limits) if name.isupper()]
    assert len(expected) == 2 + len(named)
    code = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "official_bert").rglob("*.py") if path.name != "limits.py"
    )
    assert [name for name in named if name not in code] == []


def make_workbook(path, cells):
    """Writes a workbook whose sheet has texts at places such as B2, each in a row of its own or in that of the one
    before.
    """
    rows = {}
    for place, text in cells:
        rows.setdefault(place.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), []).append(
            f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'
        )
    sheet = "".join(f'<row r="{row}">{"".join(cells)}</row>' for row, cells in rows.items())
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "[Content_Types].xml",
            (
                f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
                'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
                f'<Override PartName="/xl/workbook.xml" ContentType="{kind}.sheet.main+xml"/>'
                f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{kind}.worksheet+xml"/></Types>'
            ),
        )
        for name, target, part in (
            ("_rels/.rels", "xl/workbook.xml", "officeDocument"),
            ("xl/_rels/workbook.xml.rels", "worksheets/sheet1.xml", "worksheet"),
        ):
            archive.writestr(
                name,
                (
                    f'<Relationships xmlns="{package}/relationships"><Relationship Id="rId1" '
                    f'Type="{relations}/{part}" Target="{target}"/></Relationships>'
                ),
            )
        archive.writestr(
            "xl/workbook.xml",
            (
                f'<workbook xmlns="{SHEET}" xmlns:r="{relations}"><sheets>'
                '<sheet name="s" sheetId="1" r:id="rId1"/></sheets></workbook>'
            ),
        )
        archive.writestr(
            "xl/worksheets/sheet1.xml",
            (f'<worksheet xmlns="{SHEET}"><dimension ref="A1:XFD1048576"/><sheetData>{sheet}</sheetData></worksheet>'),
        )
    return str(path)


HEADER = [("A1", "text"), ("B1", "label")]


def test_a_workbook_is_read_up_to_its_last_filled_cell_whatever_dimension_it_claims(tmp_path):
    path = make_workbook(
        tmp_path / "a.xlsx", [*HEADER, ("A2", "a film"), ("B2", "good"), ("A5", "another"), ("B5", "bad")]
    )
    table = TableOptions().read_table(path, ["text", "label"])
    assert (table.columns, table.lines) == ({"text": ["a film", "another"], "label": ["good", "bad"]}, [2, 5])


@pytest.mark.parametrize("row", [limits.MOST_SHEET_ROWS + 1, 2**31 - 1, 10**15])
def test_a_cell_far_below_is_refused_at_once(tmp_path, row):
    path = make_workbook(tmp_path / "far.xlsx", [*HEADER, (f"A{row}", "x")])
    with pytest.raises(ValueError, match=r"far.xlsx: not a readable workbook: expected at most 1,048,576 rows"):
        TableOptions().read_table(path, ["text", "label"])


def test_a_cell_in_the_last_row_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "MOST_SHEET_ROWS", 5)
    for row, fits in ((5, True), (6, False)):
        path = make_workbook(tmp_path / "far.xlsx", [*HEADER, (f"A{row}", "x"), (f"B{row}", "y")])
        if fits:
            assert TableOptions().read_table(path, ["text"]).lines == [row]
        else:
            with pytest.raises(ValueError, match="expected at most 5 rows"):
                TableOptions().read_table(path, ["text"])


def test_a_workbook_has_bounded_columns_and_cells(tmp_path, monkeypatch):
    path = make_workbook(tmp_path / "far.xlsx", [*HEADER, *((f"XFD{row}", "x") for row in range(2, 2000))])
    with pytest.raises(ValueError, match="row 2: expected at most 4,096 columns, got 16,384"):
        TableOptions().read_table(path, ["text"])
    monkeypatch.setattr(formats, "MOST_PACKED", 0)
    monkeypatch.setattr(formats, "MOST_SHEET_CELLS", 12)
    cells = [*HEADER, ("C1", "more"), *((f"C{row}", "x") for row in range(2, 5))]
    assert list(formats.sheet_cells(make_workbook(tmp_path / "full.xlsx", cells)))[-1] == (4, ["", "", "x"])
    with pytest.raises(ValueError, match="full.xlsx: .*row 5: expected at most 12 cells, got 5 rows of 3 columns"):
        list(formats.sheet_cells(make_workbook(tmp_path / "full.xlsx", [*cells, ("A5", "x")])))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_tables_have_a_bounded_number_of_columns(tmp_path, kind):
    for width in (limits.MOST_COLUMNS, limits.MOST_COLUMNS + 1):
        path = tmp_path / f"wide.{kind}"
        names = [f"c{number}" for number in range(width)]
        if kind == "jsonl":
            path.write_text(json.dumps(dict.fromkeys(names, "x")) + "\n")
        elif kind == "parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table({name: ["x"] for name in names}), path)
        else:
            path.write_text("".join({"csv": ",", "tsv": "\t"}[kind].join(row) + "\n" for row in (names, ["x"] * width)))
        if width == limits.MOST_COLUMNS:
            assert TableOptions().read_table(str(path), ["c7"]).columns == {"c7": ["x"]}
        else:
            with pytest.raises(
                ValueError, match=rf"wide.{kind}(:1)?: expected at most 4,096 (columns|keys), got 4,097"
            ):
                TableOptions().read_table(str(path), ["c7"])


def test_bases_that_double_with_each_level_are_refused_and_a_chain_of_as_many_files_is_read(tmp_path):
    for number in range(60):
        below = f"e{number - 1}.yaml"
        (tmp_path / f"e{number}.yaml").write_text(f"base: [{below}, {below}]\n" if number else "training: {steps: 7}\n")
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"e59.yaml: base: expected at most 100 files in all"):
        load_config(str(tmp_path / "e59.yaml"))
    assert time.monotonic() - began < 5
    for count in (limits.MOST_BASES, limits.MOST_BASES + 1):
        for number in range(count):
            text = f"base: c{number - 1}.yaml\n" if number else "training: {steps: 7}\n"
            (tmp_path / f"c{number}.yaml").write_text(text)
        if count == limits.MOST_BASES:
            assert load_config(str(tmp_path / f"c{count - 1}.yaml")).training.steps == 7
    with pytest.raises(ValueError, match=r"c100.yaml: base: expected at most 100 files in all"):
        load_config(str(tmp_path / "c100.yaml"))


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("num_hidden_layers", limits.MOST_LAYERS),
        ("bilstm_layers", limits.MOST_LAYERS),
        ("vocab_size", limits.MOST_TOKENS),
        ("max_position_embeddings", limits.MOST_SIZE),
        ("intermediate_size", limits.MOST_SIZE),
        ("type_vocab_size", limits.MOST_SIZE),
        ("window", limits.MOST_SIZE),
        ("position_span", limits.MOST_SIZE),
    ],
)
def test_sizes_of_an_encoder_are_bounded(key, most):
    small = {"hidden_size": 2, "num_attention_heads": 1, "intermediate_size": 1}
    assert getattr(ModelConfig(**{**small, key: most}), key) == most
    with pytest.raises(ValueError, match=rf"model.{key}: expected at most {most:,}, got {most + 1:,}"):
        ModelConfig(**{**small, key: most + 1})


def test_sizes_in_a_configuration_of_2018_are_refused_with_its_name(tmp_path):
    (tmp_path / "bert_config.json").write_text(json.dumps({"hidden_size": 16, "num_hidden_layers": 10**9}))
    with pytest.raises(
        ValueError, match=r"bert_config.json: num_hidden_layers: expected at most 1,000, got 1,000,000,000"
    ):
        load_config(bert_config_file=str(tmp_path / "bert_config.json"))


def test_the_sizes_of_an_encoder_together_are_bounded():
    # Of BERT-base's 109,482,240, the pooler has 590,592, and 121,344 are biases and layer norms.
    assert ModelConfig().estimated_weights == 109_482_240 - 590_592 - 121_344
    layer = 12 * 1024 * 1024  # with intermediate_size 4096
    config = ModelConfig(
        hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=1000, vocab_size=1
    )
    assert 1000 * layer < config.estimated_weights < 1001 * layer < limits.MOST_WEIGHTS
    with pytest.raises(ValueError, match="model: expected sizes that make at most 17,179,869,184 weights, got about"):
        dataclasses.replace(config, vocab_size=limits.MOST_TOKENS, max_position_embeddings=limits.MOST_SIZE)


@pytest.mark.parametrize(
    "values",
    [
        {"model_type": "bert", "num_hidden_layers": 10**9},
        {"model_type": "modernbert", "num_hidden_layers": 10**9},
        {"model_type": "modernbert", "num_hidden_layers": 10**9, "layer_types": ["full_attention"]},
        {"model_type": "albert", "num_hidden_layers": [1], "inner_group_num": 10**9},
        {"model_type": "albert", "num_hidden_layers": 12, "inner_group_num": 10**9},
        {"model_type": "roberta", "vocab_size": 2**31 - 1},
        {"model_type": "bert", "vocab_size": 10**4000},
    ],
)
def test_a_folder_that_claims_endless_sizes_is_refused_before_its_weights_are_read(tmp_path, values):
    usual = {
        "vocab_size": 100,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
    }
    (tmp_path / "config.json").write_text(json.dumps(usual | values))
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"config.json: .*(expected at most|num_hidden_layers: expected a number)"):
        hugging_face.read(str(tmp_path))
    assert time.monotonic() - began < 2


def wordpiece_json():
    """A tokenizer.json with WordPieces."""
    return json.dumps(
        {"model": {"type": "WordPiece", "vocab": {piece: index for index, piece in enumerate(word_pieces())}}}
    )


def without_last_id(settings, index):
    """A tokenizer.json whose last token has another id."""
    values = json.loads(settings)
    vocab = values["model"]["vocab"]
    vocab[max(vocab, key=vocab.__getitem__)] = index
    return json.dumps(values)


@pytest.mark.parametrize("index", [2**31, 2**31 - 1, limits.MOST_TOKENS, 300, 2**64, -1, 1.5, "7"])
@pytest.mark.parametrize("make", [byte_bpe, wordpiece_json])
def test_ids_that_are_endless_or_used_twice_are_refused(tmp_path, make, index):
    (tmp_path / "tokenizer.json").write_text(without_last_id(make(), index))
    with pytest.raises(
        ValueError, match=r"expected an id (from 0|for each token)|cannot read it|expected a WordPiece vocabulary"
    ):
        loading.load(str(tmp_path))


def test_the_largest_id_is_read(tmp_path):
    (tmp_path / "tokenizer.json").write_text(without_last_id(byte_bpe(), limits.MOST_TOKENS - 1))
    tokenizer = loading.load(str(tmp_path))
    assert tokenizer.size == limits.MOST_TOKENS and tokenizer.convert_ids_to_tokens([limits.MOST_TOKENS - 1])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer_config.json", json.dumps({"added_tokens_decoder": {"x": {"content": "a"}}})),
        ("tokenizer_config.json", json.dumps({"added_tokens_decoder": [1]})),
        ("tokenizer_config.json", json.dumps({"added_tokens_decoder": {"1": "a"}})),
        ("added_tokens.json", json.dumps({"a": "x"})),
        ("added_tokens.json", '{"a": 1' + "0" * 5000 + "}"),
        ("tokenizer_config.json", "[" * 100_000),
        ("special_tokens_map.json", '{"a": ' * 100_000),
        ("tokenizer.json", "[" * 100_000),
    ],
)
def test_damaged_files_beside_a_tokenizer_are_named(tmp_path, name, text):
    (tmp_path / "tokenizer.json").write_text(byte_bpe())
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}.*(expected|nested too deeply|not JSON)"):
        loading.load(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("1" * 5000, "digits"),
        ('{"text": "\\ud800"}', r"a lone surrogate \('\\ud800'\), which is not a character"),
        ('{"text": "a\\uDFFF"}', r"a lone surrogate \('\\udfff'\)"),
        ('{"\\ud83d": 1}', "a lone surrogate"),
        ('["\\ude00\\ud83d"]', "a lone surrogate"),
        ('[{"a": {"text": 1, "b": 2, "text": 3}}]', "the key 'text' twice"),
        (b'"\xed\xa0\x80"', "invalid continuation byte"),
    ],
)
def test_json_that_nothing_can_hold_is_refused(text, told):
    with pytest.raises(ValueError, match=told):
        json_values.parse(text)


def test_yaml_with_half_a_character_is_refused_with_its_line():
    with pytest.raises(ValueError, match=r"a.yaml:2: '\\ud800x' has half a character"):
        read_yaml('a: 1\nb: ["\\ud800x"]\n', "a.yaml")
    assert read_yaml('a: "\\U0001F600"', "a.yaml") == {"a": "\U0001f600"}


def test_values_of_json_are_counted_before_they_are_made():
    assert json_values.parse('{"a": [1, 2]}', 3) == {"a": [1, 2]}
    with pytest.raises(ValueError, match="expected at most 3 values, got 4"):
        json_values.parse(b'{"a": [[], 2]}', 3)


def test_merges_that_grow_in_both_directions_are_not_multiplied_out():
    """Each symbol of `a` may grow into each longer one, and those of `b` as well: 200 merges of them have millions of
    pairs.
    """
    count, letters = 200, byte_letters()
    pairs = [("a" * size, "a") for size in range(1, count)] + [("b", "b" * size) for size in range(1, count)]
    pairs += [("b" * count, "a" * size) for size in range(1, count + 1)]
    vocab = {token: place for place, token in enumerate([*letters, *map("".join, pairs)])}
    with pytest.raises(ValueError, match="merges.txt: expected at most 1,048,576 pairs of symbols"):
        merges(vocab, pairs, "merges.txt")
    assert len(merges(vocab, pairs[: 2 * count], "merges.txt").products) == 2 * count


def test_pairs_of_surrogates_are_characters():
    assert json_values.parse('["\\ud83d\\ude00", "\\\\ud800"]') == ["\U0001f600", "\\ud800"]
    assert json_values.parse(b"\xef\xbb\xbf[1]") == [1]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"text": "a"}\n{"text": "b\\udc00"}\n', "a.jsonl:2: not valid JSON: a lone surrogate"),
        ('[{"text": "b\\udc00"}]', "a.jsonl:1: not valid JSON: a lone surrogate"),
        ('[\n{"text": "b\\udc00"}]\n', "a.jsonl: not valid JSON: a lone surrogate"),
        ('{"text": "a"}\n' + "[" * 100_000 + "\n", "a.jsonl:2: not valid JSON: nested too deeply"),
    ],
)
def test_rows_of_json_that_nothing_can_hold_are_named(tmp_path, text, where):
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=where):
        TableOptions().read_table(str(path), ["text"])


@pytest.mark.parametrize(
    "change",
    [
        {"limits": None},
        {"limits": []},
        {"limits": {"vocab_size": 10, "type_vocab_size": 2}},
        {"format": None},
        {"format": "torch"},
        {"format": ["onnx"]},
        {"limits": {"vocab_size": 2**64, "type_vocab_size": 2, "max_seq_length": 8}},
        {"options": 1},
        {"inputs": 1},
        {"outputs": {"logits": ["float32"]}},
        {"outputs": {"logits": ["float33", [None, 2]]}},
        {"bound": "1"},
        {"bound": float("inf")},
        {"bound": -1.0},
        {"outputs": {"logits": ["float32", [-1]]}},
    ],
)
def test_a_description_of_a_portable_model_without_its_parts_is_refused(tmp_path, change):
    whole = {
        "format": "onnx",
        "inputs": {"input_ids": ["int32", [None, None]]},
        "outputs": {"logits": ["float32", [None, 2]]},
        "limits": {"vocab_size": 10, "type_vocab_size": 2, "max_seq_length": 8},
        "options": {},
    }
    assert engines._fault_of(whole) == ""
    (tmp_path / engines.FILE).write_text(json.dumps(whole | change))
    with pytest.raises(
        ValueError, match=f"model.json: expected the files that run_export writes beside a model: {next(iter(change))}"
    ):
        engines.load_engine(str(tmp_path))
    (tmp_path / engines.FILE).write_text(json.dumps([whole]))
    with pytest.raises(ValueError, match="model.json: expected a mapping"):
        engines.load_engine(str(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"model": 1},
        {"model": {"type": []}},
        {"model": {"type": "BPE", "vocab": 1}},
        {"added_tokens": [[1]]},
        {"post_processor": 1},
        {"post_processor": {"type": "TemplateProcessing", "pair": [1]}},
    ],
)
def test_sections_of_another_kind_in_a_tokenizer_are_refused(tmp_path, change):
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(byte_bpe()) | change))
    with pytest.raises(ValueError, match=r"tokenizer.json: (model: |post_processor.pair: )?expected"):
        loading.load(str(tmp_path))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("x"),
        ImportError("libtensorflow_cc.so.2: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_too_little_memory_is_told_in_one_line_whatever_error_says_it(error, monkeypatch):
    outer = KeyError("raised while it was handled")
    outer.__context__ = error
    for limit, told in ((None, "take less"), (3 << 30, "may have 3,221,225,472 bytes of address space (ulimit -v)")):
        monkeypatch.setattr(command_line, "address_space", lambda limit=limit: limit)
        for raised in (error, outer):
            line = command_line.error_line(raised, None)
            assert line.startswith("error: out of memory; ") and line.endswith(told)
    assert not command_line.error_line(KeyError("a"), None)


def test_tensorflow_is_not_imported_into_less_address_space_than_it_needs():
    code = (
        "import sys\nfrom official_bert import command_line\ntry:\n    import tensorflow\nfinally:\n"
        "    print('tensorflow' in sys.modules)"
    )
    least = command_line.LEAST_ADDRESS_SPACE >> 10  # KiB
    done = subprocess.run(
        ["bash", "-c", f'ulimit -v {least - 1}; exec {sys.executable} -c "$0"', code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "False\n")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: out of memory; ")
