"""Writes a trained model as SavedModels that take raw text, and token ids.

    python -m official_bert.run_export --checkpoint=runs/small --output=models/small
    python -m official_bert.run_export --checkpoint=bert-base-uncased --head=embeddings --output=models/vectors

writes models/small/text/1 and models/small/ids/1; see docs/serving_models.md for their inputs and outputs.
--format=saved_model,onnx,litert,openvino writes models/small/onnx/1, models/small/litert/1 and models/small/openvino/1
as well, for ONNX Runtime, LiteRT and OpenVINO.
"""

from official_bert.command_line import run_main

from typing import Any

from absl import flags

from official_bert import command_line

FLAGS = flags.FLAGS
command_line.define_base("checkpoint")
flags.DEFINE_list(
    "adapters",
    [],
    "Runs with training.adapters, or heads alone, and PEFT folders, all for the base in "
    "--checkpoint: the tasks of one SavedModel, which has a signature for each, named as its folder.",
)
flags.DEFINE_string(
    "checkpoint",
    None,
    "A training run's output folder (its best checkpoint, if training.answer_with says so, or its newest), one "
    "checkpoint in it (folder/ckpt-1000), or a checkpoint of any format that --init_checkpoint takes: TF 1, Hugging "
    "Face, keras-hub, tf-models.",
    required=True,
)
flags.DEFINE_string(
    "task", "", "The dotted name of your own task, which the run's configuration names; its module is imported."
)
flags.DEFINE_string("vocab_file", "", "The vocabulary, if it is not beside --checkpoint.")
flags.DEFINE_bool(
    "do_lower_case", None, "Whether text is lower-cased; by default decided by the files beside the checkpoint."
)
flags.DEFINE_string("output", None, "Folder of the exported model, such as models/NAME.", required=True)
flags.DEFINE_integer("version", 0, "Version to write; 0: one above the highest existing version.", 0, 10**18 - 1)
flags.DEFINE_enum("head", "", ["", "embeddings"], "The model's output; empty: the answers of its task.")
flags.DEFINE_enum(
    "pooling",
    None,
    ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"],
    "Embeddings: the vector of "
    "[CLS], or the mean or another pooling over all tokens; by default as a retrieval run was trained, or the mean.",
)
flags.DEFINE_bool(
    "normalize", None, "Embeddings: vectors of length 1; by default as a retrieval run's options.normalize says."
)
flags.DEFINE_integer(
    "dimensions",
    None,
    "Embeddings: only the first numbers of a vector, as trained with options.matryoshka.",
    lower_bound=1,
)
flags.DEFINE_enum(
    "vectors",
    None,
    ["float32", "int8", "binary"],
    "Embeddings: the numbers of a vector. int8: 256 steps over the range of "
    "each number in --calibration_file; binary: a bit each, eight in a uint8.",
)
flags.DEFINE_string(
    "calibration_file",
    "",
    "Texts that resemble the later requests, in any format of run_predict --input_file: some "
    "thousand for --vectors=int8, up to 300 for --format=onnx_int8 and openvino_int8.",
)
flags.DEFINE_integer("max_seq_length", 0, "The most tokens of a row; 0: as in training.")
flags.DEFINE_integer(
    "top_k",
    None,
    "Fill-mask: words for each [MASK] (default 5). Sparse vectors: words of a text (default 256).",
    lower_bound=1,
)
flags.DEFINE_float(
    "threshold",
    None,
    "Multi-label classifier: a label is given from this probability on; by default as the run's "
    "options.threshold says (0.5, or what its evaluation tuned).",
    0.0,
    1.0,
)
flags.DEFINE_bool(
    "pretokenized",
    None,
    "Tagger: words are separated by spaces, as in CoNLL files; otherwise punctuation around words is split off.",
)
flags.DEFINE_bool(
    "redact",
    None,
    "Tagger: give the text with [PER_1] in place of each entity, its type and a number, instead of the entities.",
)
flags.DEFINE_bool(
    "pairs",
    None,
    "Classifier: a row has two texts; by default as in training, or one for a checkpoint that is not a run.",
)
flags.DEFINE_bool(
    "explanations",
    None,
    "Classifier: a signature `explain` too, which says which words made an answer (docs/explain.md).",
)
flags.DEFINE_integer(
    "max_positions",
    None,
    "Fill-mask: the most [MASK] (or masked_lm_positions) of a text (default 128). Requests beyond "
    "this limit, or one of the next two, are refused.",
    lower_bound=1,
)
flags.DEFINE_integer("max_choices", None, "Choice models: the most choices of a text (default 32).", lower_bound=1)
flags.DEFINE_integer(
    "max_windows",
    None,
    "Question answering, taggers, classifiers with windows: the most windows over a text (default 256).",
    lower_bound=1,
)
flags.DEFINE_integer(
    "tokens_at_once",
    None,
    "Question answering, taggers, classifiers with windows: the most tokens (of windows) that go "
    "through the model at once, which limits memory (default 4096).",
    lower_bound=1,
)
command_line.define_no_answer()
flags.DEFINE_string(
    "precision",
    "float32",
    "Of products in the exported graph: float32, or bfloat16 for CPUs with instructions for it. Answers are float32.",
)
flags.DEFINE_bool(
    "constant_weights",
    None,
    "Whether the weights of layers are constants in saved_model.pb too, at most 500 MB, which requests of up to 48 "
    "tokens read: oneDNN arranges them once, and they take less time. Others read variables. They cost a server memory "
    "(MiniLM, 42 MB: 1.6 GB more under load). The default is yes for float32 and 1 to 100 MB.",
)
flags.DEFINE_list(
    "format",
    ["saved_model"],
    "Formats, one or several with commas: saved_model (text and ids), and, for rows of ids in "
    "other runtimes, onnx, onnx_int8, litert, litert_float16, litert_int8, openvino, openvino_bfloat16, openvino_int8.",
)
flags.DEFINE_integer("opset", 17, "onnx: the version of its operations, 13 to 18.")
flags.DEFINE_string(
    "check_file",
    "",
    "Formats of less precision than float32 (litert_float16 only if it is not within 1e-4): texts, in a file of any "
    "form that training reads, on which the loss of accuracy against the SavedModel is measured.",
)
flags.DEFINE_string(
    "check_label",
    "",
    "The column of --check_file with the right label, choice or answer; without it, the share of "
    "changed answers is the loss.",
)
flags.DEFINE_float("check_loss", 0.01, "The greatest loss with which formats of less precision are written.", 0.0, 1.0)
flags.DEFINE_list(
    "warmup_batch_sizes",
    ["1", "8", "32"],
    "Batch sizes of the warm-up requests; TF Serving runs at most the largest of "
    "them at once. Empty: no warm-up, and at most 32 rows at once.",
)


def main(_: list[str]) -> None:
    """Loads the run, exports its model and prints the folders written."""
    from official_bert.interface.exporting import Texts, export_model
    from official_bert.serving.export import ExportOptions
    from official_bert.serving.formats.writing import FormatOptions
    from official_bert.serving.served_model import ServingOptions
    from official_bert.tasks.loading import task_class

    check_flags(FLAGS)
    if FLAGS.task:
        task_class(FLAGS.task, "--task")
    writing = command_line.from_flags(
        ExportOptions,
        FLAGS,
        batch_sizes=[*map(int, FLAGS.warmup_batch_sizes)],
        formats=FLAGS.format,
        other_formats=FormatOptions(opset=FLAGS.opset),
    )
    print(
        "\n".join(
            export_model(
                FLAGS.checkpoint,
                FLAGS.adapters,
                command_line.from_flags(ServingOptions, FLAGS),
                writing,
                command_line.from_flags(Texts, FLAGS),
                FLAGS.vocab_file,
                FLAGS.do_lower_case,
                FLAGS.base,
            )
        )
    )


def check_flags(values: Any) -> None:
    """Raises ValueError for flags that would do nothing, contradict each other or are no numbers (`values`: absl's
    `FLAGS`).
    """
    command_line.refuse_unread(
        values,
        [
            (["check_label", "check_loss"], bool(values.check_file), "--check_file"),
            (["warmup_batch_sizes"], "saved_model" in values.format, "saved_model in --format"),
        ],
    )
    if not all(size.isdecimal() and int(size) for size in values.warmup_batch_sizes):
        raise ValueError(
            f"--warmup_batch_sizes: expected numbers above 0 with commas, got {','.join(values.warmup_batch_sizes)!r}"
        )


if __name__ == "__main__":
    run_main(main)
