"""Bounds on what files claim: a small file from outside neither fills the memory nor takes hours.

The string below a constant is its meaning. SECURITY.md has the same as a table; tests/test_limits.py compares both.
The bounds of a server's requests are flags (docs/serving_limits.md).
"""

# Packed files
LONGEST_LINE = 64 << 20
"""bytes of a line in a packed file"""
MOST_PACKED = 200
"""bytes that a packed byte of a text, a table or a zip file may unpack to, beyond the first 64 MiB"""
MOST_UNPACKED = 64 << 20
"""bytes that the entries of a zip file, or a result in a work folder, may claim, however small it is"""
MOST_PACKED_RECORD = 64 << 20
"""bytes of a record in a packed TFRecord file"""

# Configurations
MOST_YAML = 1 << 20
"""bytes of a YAML file"""
MOST_VALUES = 20_000
"""keys, values, lists and mappings in a YAML file"""
DEEPEST = 50
"""lists and mappings in each other, in YAML; groups in an HDF5 file of weights"""
MOST_ALIASES = 100
"""anchors (`&name`), and aliases (`*name`), in a YAML file"""
LONGEST_NUMBER = 1000
"""characters of a number in a YAML file"""
MOST_EXPANDED = 10_000_000
"""bytes of the values in a YAML file, aliases written out"""
MOST_JSON = 64 << 20
"""bytes of a vocabulary, of each file of a tokenizer, and of a JSON file that describes a model or an adapter"""
MOST_JSON_VALUES = 4_000_000
"""values in such a JSON file, as its commas and brackets count them"""
MOST_BASES = 100
"""files that a configuration reads through `base:`, each as often as it is named"""

# Models
MOST_LAYERS = 1000
"""layers of an encoder, and BiLSTMs on it"""
MOST_TOKENS = 1 << 22
"""entries of a vocabulary, whose ids are below it"""
MOST_SIZE = 1 << 20
"""every other whole number in the configuration of an encoder: widths, positions, heads, segments, buckets"""
MOST_WEIGHTS = 1 << 34
"""weights that the sizes of an encoder may make (64 GiB in float32)"""
LARGEST_DOWNLOAD = 8 << 30
"""bytes of the files in a model's zip file"""
MOST_PAIRS = 1 << 20
"""pairs of symbols on the way to those that merges of byte-level BPE join, or 32 for each merge if that is more"""
MOST_ADDED = 1 << 15
"""characters of the added tokens of a tokenizer, in a graph that answers texts"""
MOST_PATTERNS = 1000
"""patterns in the `alpha_pattern` of an adapter"""
MOST_OPERATIONS = 1 << 18
"""operations of the pickles in a PyTorch file, about 40 for each tensor"""
MOST_DIMENSIONS = 8
"""dimensions of a tensor in a PyTorch or safetensors file"""
MOST_SHARED = 4
"""bytes of the tensors of a PyTorch file for each of its own: some share a storage, as tied weights do"""
MOST_LINKS = 1 << 16
"""names of groups and tensors in an HDF5 file of weights, tensors in a safetensors file"""

# Tables
MOST_COLUMNS = 4096
"""columns of a table, keys of a row of JSON"""
MOST_SHEET_ROWS = 1 << 20
"""rows of a workbook's sheet, as in Excel"""
MOST_EMPTY_ROWS = 1000
"""empty rows before the first filled one of a sheet"""
MOST_TAGS = 250_000
"""tags in the XML of a workbook: each row and each cell has one, empty ones too"""
MOST_TAGS_PACKED = 8
"""tags for each byte of a workbook, if that is more"""
MOST_SAMPLE = 1 << 18
"""bytes of the lines that tell the encoding of a text that is not UTF-8"""
MOST_SHEET_CELLS = 1 << 24
"""cells of a sheet, rows times columns, or `MOST_PACKED` for each byte of the file if that is more"""


def require_at_most(most: int, count: int, what: str, where: str) -> None:
    """Raises ValueError, beginning with `where`, for more of something than a bound."""
    if count > most:
        raise ValueError(f"{where}: expected at most {most:,} {what}, got {count:,}")
