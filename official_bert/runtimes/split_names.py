"""Names of inputs and outputs of a signature that is split in two, so that another runtime can compute the model
between (`serving/split_signature`).

NAME is the name of an input or output of the model. B texts, R rows, G groups of rows.
"""

PREPARE, FINISH = "prepare", "finish"  # of serving_default; of another signature with _SIGNATURE behind it
ROWS, WHOLE = "rows_", "whole_"  # and NAME: inputs of the model [R,...], cut to a group's longest row, or not
# the rows [R] in the order of their groups, rows of a group [G], tokens of a row [R]
ORDER, SIZES, LENGTHS = "order", "sizes", "lengths"
# the signature of serialized Examples, and one that parses them into the inputs of serving_default
EXAMPLES, PARSE = "examples", "parse_examples"
STATE = "state_"  # and a number: what `finish` needs besides
OUTPUT = "output_"  # and NAME: outputs of the model


def part_name(part: str, signature: str) -> str:
    """Returns the name of a signature's part, PREPARE or FINISH."""
    return part if signature == "serving_default" else f"{part}_{signature}"
