"""A run of text_to_text that is killed goes on bit for bit."""

import pytest
import yaml
from killed_runs import STEPS, check_killed_run
from made_finetuning import make_config
from made_pretraining import write_vocab

from official_bert.config import to_dict


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"generator": "decoder", "corruption": "infilling", "label_smoothing": 0.1}])
def test_a_run_killed_three_times_ends_as_the_one_that_was_not(tmp_path, options):
    vocab = write_vocab(tmp_path / "vocab.txt")
    rows = [f"{first} {second}\t{second} {first}\n" for first in "abcdefghij" for second in "abcdefghij"]
    (tmp_path / "train.tsv").write_text("source\tanswer\n" + "".join(rows))
    config = make_config(
        "text_to_text",
        tokenizer={"vocab_file": vocab},
        options=options,
        model={"vocab_size": 40, "hidden_dropout_prob": 0.1},
        training={"epochs": 0.0, "steps": STEPS, "log_every": 1, "save_every": 3, "steps_per_loop": 2},
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))

    def command(output):
        return [
            "-m",
            "official_bert.run_finetuning",
            f"--config={tmp_path}/config.yaml",
            f"--train_file={tmp_path}/train.tsv",
            f"--eval_file={tmp_path}/train.tsv",
            f"--output_dir={output}",
        ]

    check_killed_run(tmp_path, command)
