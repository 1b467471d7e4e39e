"""Fine-tunes on every task with public data, beside Hugging Face's PyTorch, and writes tables in Markdown.

    make venv-torch minilm
    python benchmarks/quality.py --data=FOLDER --init_checkpoint=MODEL_FOLDER --output_file=quality.md
    python benchmarks/quality.py --data=FOLDER --init_checkpoint=MODEL_FOLDER --only=mrpc,rte --output_file=quality.md

FOLDER holds `glue/MRPC`, `glue/RTE`, ... as published, `wnut17` and `squad_v1.1`. Each table comes
from one `benchmarks/finetuning.py` command, printed above it; tables are added to the file one by one.
"""

import pathlib
import shlex
import subprocess
import sys

from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("data", None, "The folder of the data.", required=True)
flags.DEFINE_string("init_checkpoint", None, "A Hugging Face folder.", required=True)
flags.DEFINE_string("output_file", None, "Tables are added to this file.", required=True)
flags.DEFINE_list("only", [], "Names of runs; none: all.")
COMMAND = pathlib.Path(__file__).with_name("finetuning.py")
MRPC = ("--task=mrpc", "--data_dir={data}/glue/MRPC", "--seeds=5")
SQUAD = ("--task=squad", "--train_file={data}/squad_v1.1/train-v1.1.subset.json", "--eval_file={data}/squad_v1.1/dev-v1.1.json",
         "--max_seq_length=384", "--epochs=2")
BIAS_CORRECTED = ("--set=optimizer.name=adamw_bias_corrected", "--notheirs")  # the peer's AdamW in ours
WORDS = ("--task=ner", "--data_dir={data}/wnut17")
RUNS = {
    "mrpc": MRPC,
    "mrpc_bias_corrected": (*MRPC, *BIAS_CORRECTED),
    "wnut": (*WORDS, "--epochs=5"),
    "wnut_crf": (*WORDS, "--epochs=5", "--set=options.crf=true", "--set=options.constrain=true", "--notheirs"),
    "wnut_features": (*WORDS, "--epochs=10", "--learning_rate=1e-3", "--set=options.features=concat", "--notheirs"),
    "rte": ("--task=rte", "--data_dir={data}/glue/RTE"),
    "stsb": ("--task=stsb", "--data_dir={data}/glue/STS-B"),
    "cola": ("--task=cola", "--data_dir={data}/glue/CoLA"),
    "squad": SQUAD,
    "squad_bias_corrected": (*SQUAD, *BIAS_CORRECTED),
    "sst2": ("--task=sst2", "--data_dir={data}/glue/SST-2", "--epochs=1"),
}


def run(name: str) -> str:
    """Returns the table of one run with its command, in Markdown."""
    arguments = [part.format(data=FLAGS.data) for part in RUNS[name]] + [f"--init_checkpoint={FLAGS.init_checkpoint}"]
    done = subprocess.run([sys.executable, str(COMMAND), *arguments], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return f"{name}: ended with status {done.returncode}\n"
    shown = shlex.join([*(part.format(data="DATA") for part in RUNS[name]), "--init_checkpoint=MODEL"])
    return f"```\npython benchmarks/finetuning.py {shown}\n```\n\n{done.stdout.strip()}\n"


def main(_) -> None:
    """Runs the commands one after another."""
    if unknown := set(FLAGS.only) - set(RUNS):
        sys.exit(f"error: --only: expected names of {', '.join(RUNS)}, got {', '.join(sorted(unknown))}")
    for name in FLAGS.only or RUNS:
        table = run(name)
        print(table, flush=True)
        with open(FLAGS.output_file, "a", encoding="utf-8") as file:
            file.write(table + "\n")


if __name__ == "__main__":
    app.run(main)
