"""Fine-tunes on a published sentence task with the flags and the output files of 2018's `run_classifier.py`.

    python -m official_bert.run_classifier --task_name=MRPC --do_train=true --do_eval=true --data_dir=glue/MRPC \
        --vocab_file=$BERT/vocab.txt --bert_config_file=$BERT/bert_config.json --init_checkpoint=$BERT/bert_model.ckpt \
        --max_seq_length=128 --train_batch_size=32 --learning_rate=2e-5 --num_train_epochs=3.0 --output_dir=runs/mrpc

`run_finetuning` does more: your own data, grids, several seeds, files to hand in.
"""

from official_bert.command_line import run_main

from absl import flags

from official_bert import command_line, flags_of_2018
from official_bert.config import AS_IN_2018, merge
from official_bert.training.machines import cluster

FLAGS = flags.FLAGS
flags.DEFINE_string("task_name", None, "CoLA, MNLI, MRPC, XNLI, or another of GLUE's.", required=True)
flags.DEFINE_string("data_dir", None, "The folder of the task's files.", required=True)
flags.DEFINE_string("output_dir", None, "The folder for checkpoints and results.", required=True)
flags.DEFINE_string("init_checkpoint", "", "A checkpoint to take the weights from; its optimizer state is not used.")
flags.DEFINE_bool("do_train", False, "Train.")
flags.DEFINE_bool("do_eval", False, "Evaluate on the development set and write eval_results.txt.")
flags.DEFINE_bool("do_predict", False, "Write the probabilities of the test set's labels to test_results.tsv.")
flags.DEFINE_bool("allow_same_data", False, "Only warn if the evaluation data are the training data, for smoke tests.")
flags.DEFINE_string("cache_dir", "", "A folder that keeps tokenized data between runs; empty: none.")
command_line.define_configuration()
command_line.define_placement()
flags_of_2018.define_2018(
    [
        "vocab_file",
        "do_lower_case",
        "max_seq_length",
        "train_batch_size",
        "eval_batch_size",
        "learning_rate",
        "num_train_epochs",
        "warmup_proportion",
        "save_checkpoints_steps",
        "iterations_per_loop",
    ]
)
flags_of_2018.define_without_meaning(["master", "num_tpu_cores", "predict_batch_size"])


def main(_: list[str]) -> None:
    """Trains, evaluates and predicts as the flags say; flags that are not given have 2018's values."""
    placement = cluster.Placement(**command_line.placement_values(FLAGS))
    sources = command_line.config_sources(FLAGS)
    if FLAGS.do_train or FLAGS.do_eval:  # the first worker alone predicts
        cluster.meet(placement)
    from official_bert.interface.as_in_2018 import classify_as_in_2018
    from official_bert.run_folder import RunFolder
    from official_bert.runs.configuration import run_config
    from official_bert.tasks.data import DataFiles, Steps
    from official_bert.tasks.loading import GLUE, dataset_name, load_task

    if (dataset := dataset_name(FLAGS.task_name)) is None:
        raise ValueError(f"--task_name: expected one of {', '.join(GLUE)}, got {FLAGS.task_name!r}")
    steps, run = (
        Steps(train=FLAGS.do_train, evaluate=FLAGS.do_eval, predict=FLAGS.do_predict),
        RunFolder(FLAGS.output_dir),
    )
    language = ["options.language=zh"] if dataset == "xnli" else []  # as XnliProcessor of 2018
    config = run_config.of_training(
        sources.over("task=glue", f"options.dataset={dataset}", *language),
        FLAGS.init_checkpoint,
        run,
        merge(run_config.DEFAULTS, AS_IN_2018),
    )
    if steps.train:
        run_config.refuse_overridden(config, sources.keys())
    task = load_task(config if steps.train else run_config.with_vocabulary_of(config, run))
    files = command_line.from_flags(DataFiles, FLAGS)
    classify_as_in_2018(task, files, run, placement, FLAGS.init_checkpoint, steps)


if __name__ == "__main__":
    run_main(main)
