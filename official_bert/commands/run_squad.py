r"""Fine-tunes on questions in SQuAD's format and answers them, with the flags of 2018's `run_squad.py`.

    python -m official_bert.run_squad --bert_config_file=bert_config.json --vocab_file=vocab.txt \
        --init_checkpoint=bert_model.ckpt --do_train --train_file=train-v1.1.json --do_predict \
        --predict_file=dev-v1.1.json --output_dir=runs/squad

Besides 2018's three prediction files it writes the official metrics (`eval_results.txt`) if the file has gold answers.
A later --do_predict needs only the run's folder. --ensemble=runs/a,runs/b averages the logits of several runs. A second
fine-tuning starts from the first with --init_checkpoint=FOLDER. --eval_files='xquad.*.json' measures the trained model
on files in several languages.
"""

from official_bert.command_line import run_main

from absl import flags

from official_bert import command_line, flags_of_2018
from official_bert.storage.files import find_files
from official_bert.training.machines import cluster

FLAGS = flags.FLAGS
command_line.define_base("init_checkpoint")
flags.DEFINE_string("output_dir", None, "The folder for checkpoints, configuration and predictions.", required=True)
flags.DEFINE_string("train_file", "", "SQuAD's JSON for training, such as train-v1.1.json.")
flags.DEFINE_string("predict_file", "", "SQuAD's JSON for predictions, such as dev-v1.1.json or test-v1.1.json.")
flags.DEFINE_string(
    "init_checkpoint", "", "A checkpoint to take the weights from: pre-trained, or a fine-tuned run's folder."
)
flags.DEFINE_string(
    "eval_files",
    "",
    "Files of questions in several languages, which their names tell: paths and globs, with commas "
    "between. Prints a table, and writes languages.json and languages.md.",
)
flags.DEFINE_bool("do_train", False, "Train.")
flags.DEFINE_bool(
    "do_predict",
    False,
    "Answer the questions of --predict_file with the newest checkpoint of --output_dir, or with its "
    "best one if training.answer_with is best.",
)
flags.DEFINE_bool("allow_same_data", False, "Only warn if the evaluation data are the training data, for smoke tests.")
flags.DEFINE_string("ensemble", "", "Comma-separated output folders of finished runs: their logits are averaged.")
flags.DEFINE_string("cache_dir", "", "A folder that keeps tokenized training features between runs.")
command_line.define_configuration()
command_line.define_placement()
flags_of_2018.define_2018(
    [
        "vocab_file",
        "do_lower_case",
        "max_seq_length",
        "doc_stride",
        "max_query_length",
        "max_answer_length",
        "n_best_size",
        "version_2_with_negative",
        "null_score_diff_threshold",
        "train_batch_size",
        "learning_rate",
        "num_train_epochs",
        "warmup_proportion",
        "save_checkpoints_steps",
        "iterations_per_loop",
    ]
)
flags_of_2018.define_without_meaning(["master", "num_tpu_cores", "verbose_logging"])
flags.DEFINE_integer("predict_batch_size", None, "training.eval_batch_size (32; 2018: 8).")


def main(_: list[str]) -> None:
    """Trains, answers, or both."""
    placement, sources = cluster.Placement(**command_line.placement_values(FLAGS)), command_line.config_sources(FLAGS)
    if FLAGS.do_train:  # the first worker alone answers
        cluster.meet(placement)
    from official_bert.interface.questions import QuestionRun
    from official_bert.models.checkpoints import merged_copy
    from official_bert.run_folder import RunFolder
    from official_bert.tasks.data import DataFiles
    from official_bert.training.machines.distribution import answering_scope

    if FLAGS.predict_batch_size is not None:
        sources = sources.over(f"training.eval_batch_size={FLAGS.predict_batch_size}")
    files = command_line.from_flags(DataFiles, FLAGS, eval_file=FLAGS.predict_file)
    squad = QuestionRun(
        run=RunFolder(FLAGS.output_dir),
        sources=sources,
        files=files,
        trains=FLAGS.do_train,
        init_checkpoint=merged_copy(FLAGS.init_checkpoint, FLAGS.base),
        answers=FLAGS.do_predict,
        ensemble=[folder for folder in FLAGS.ensemble.split(",") if folder],
        eval_files=find_files(FLAGS.eval_files, "--eval_files") if FLAGS.eval_files else [],
    )
    trained = squad.train(placement) if squad.trains else None
    if cluster.is_first_worker(placement):
        with answering_scope(placement):
            answered = squad.answer() if squad.answers else None
            if squad.eval_files:
                squad.measure()
        if trained:
            squad.write_card(trained, answered)


if __name__ == "__main__":
    run_main(main)
