"""The names of the commands: in a checkout those of files, in an installation `official-bert COMMAND`."""

import re
import types
from collections.abc import Mapping

# The modules of the commands, in the order in which a person needs them.
COMMANDS: Mapping[str, str] = types.MappingProxyType(
    {
        "demo": "official_bert.tools.demo",
        "verify": "official_bert.tools.verify",
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
        "compare-engines": "official_bert.tools.compare_engines",
        "serve": "official_bert.commands.serve",
        "run-ablations": "official_bert.tools.run_ablations",
        "report-ablations": "official_bert.tools.report_ablations",
        "make-ablation-text": "official_bert.tools.make_ablation_text",
        "check-accelerator": "official_bert.tools.check_accelerator",
        "lower-for-tpu": "official_bert.tools.lower_for_tpu",
        "compile-for-tpu": "official_bert.tools.compile_for_tpu",
    }
)
DISTRIBUTION = "official-bert"
BY_ONE_NAME = "__official_bert_command__"  # what `official-bert COMMAND` defines in the main that it runs
# Other names of the commands, and files that only a checkout has.
IN_CHECKOUT = re.compile(
    r"(?:\S*python )?(?:-m official_bert\.|tools/)(\w+)(?:\.py)?|\b(run_\w+)\b(?!\.py)|configs/([\w/]+)\.yaml"
)


def as_installed(text: str) -> str:
    """Returns a text with the names that commands and configurations have for `official-bert COMMAND`."""
    names = {module.rpartition(".")[2]: f"{DISTRIBUTION} {name}" for name, module in COMMANDS.items()}
    return IN_CHECKOUT.sub(lambda match: match[3] or names.get(match[1] or match[2], match[0]), text)
