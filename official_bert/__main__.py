"""The commands under one name: `official-bert pretrain --config=pretrain/small ...`.

Each runs the same main as `python -m official_bert.run_pretraining` or `python tools/build_vocab.py`; `official-bert
COMMAND --help` lists its flags.
"""

import ast
import difflib
import importlib.metadata
import importlib.util
import pathlib
import runpy
import sys
import types
from collections.abc import Mapping

# The modules of the commands, in the order in which a person needs them.
COMMANDS: Mapping[str, str] = types.MappingProxyType({
    "demo": "official_bert.tools.demo",
    "prepare-corpus": "official_bert.tools.prepare_corpus",
    "build-vocab": "official_bert.tools.build_vocab",
    "resize-checkpoint": "official_bert.tools.resize_checkpoint",
    "create-pretraining-data": "official_bert.tools.create_pretraining_data",
    "inspect-data": "official_bert.tools.inspect_data",
    "inspect-records": "official_bert.tools.inspect_records",
    "pack-records": "official_bert.tools.pack_records",
    "pretrain": "official_bert.commands.run_pretraining",
    "plot-run": "official_bert.tools.plot_run",
    "finetune": "official_bert.commands.run_finetuning",
    "run-classifier": "official_bert.commands.run_classifier",
    "run-squad": "official_bert.commands.run_squad",
    "compare-runs": "official_bert.tools.compare_runs",
    "predict": "official_bert.commands.run_predict",
    "mine-negatives": "official_bert.tools.mine_negatives",
    "features": "official_bert.commands.extract_features",
    "look-inside": "official_bert.tools.look_inside",
    "glue-submission": "official_bert.tools.glue_submission",
    "convert": "official_bert.tools.convert_checkpoint",
    "export": "official_bert.commands.run_export",
    "serve": "official_bert.commands.serve",
    "run-ablations": "official_bert.tools.run_ablations",
    "report-ablations": "official_bert.tools.report_ablations",
    "make-ablation-text": "official_bert.tools.make_ablation_text",
    "check-accelerator": "official_bert.tools.check_accelerator",
    "lower-for-tpu": "official_bert.tools.lower_for_tpu",
})
DISTRIBUTION = "official-bert"


def main() -> None:
    """Runs the command that the first argument names, with the other arguments."""
    command, arguments = (sys.argv[1], sys.argv[2:]) if len(sys.argv) > 1 else ("--help", [])
    if command in ("--help", "-h", "help"):
        print(overview())
    elif command == "--version":
        print(
            f"{DISTRIBUTION} {importlib.metadata.version(DISTRIBUTION)}, tensorflow "
            f"{importlib.metadata.version('tensorflow')}, "
            f"keras {importlib.metadata.version('keras')}")
    elif command in COMMANDS:
        sys.argv = [f"{DISTRIBUTION} {command}", *arguments]
        runpy.run_module(COMMANDS[command], run_name="__main__", alter_sys=True)
    else:
        nearest = difflib.get_close_matches(command.replace("_", "-"), COMMANDS, n=3, cutoff=0.5)
        hint = f"perhaps {' or '.join(nearest)}" if nearest else f"expected one of {', '.join(COMMANDS)}"
        raise SystemExit(f"error: {DISTRIBUTION} has no command {command!r}: {hint}; {DISTRIBUTION} --help lists them")


def overview() -> str:
    """Returns a line for each command: its name and the first paragraph of its module's docstring, which is read,
    not imported.
    """
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {_summary(module)}" for name, module in COMMANDS.items()]
    return "\n".join([f"usage: {DISTRIBUTION} COMMAND [--flag=value ...]", "", *lines, "",
                      f"{DISTRIBUTION} COMMAND --help lists its flags."])


def _summary(module: str) -> str:
    """Returns the first paragraph of the docstring of a module, in one line."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = ast.get_docstring(ast.parse(pathlib.Path(spec.origin).read_text(encoding="utf-8")))
    assert text is not None
    return text.partition("\n\n")[0].replace("\n", " ")


if __name__ == "__main__":
    main()
