"""The questions of the conformance suite, and what the code of 2018 answers."""

import contextlib
import importlib.util
import json
import pathlib
import shutil
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

BOUND = 1e-5  # of numbers: differences over the largest number of the array
LONGEST_SHOWN = 80  # characters of a case
SHOWN = 5  # of the shortest texts that differ, parts are tried
SCORES = {  # predictions, labels, and the metrics of GLUE, worked out by hand
    "labels": [1, 1, 0, 0, 1, 0],
    "predictions": [1, 0, 0, 1, 1, 0],
    # TP 2, FP 1, FN 1, TN 2: accuracy 4/6, F1 4/6, Matthews (2*2 - 1*1) / sqrt(3*3*3*3) = 3/9
    "accuracy": 4 / 6,
    "f1": 4 / 6,
    "matthews": 3 / 9,
    "x": [1.0, 2.0, 3.0, 4.0],
    "y": [1.0, 3.0, 2.0, 4.0],
    # means 2.5; products of deviations 2.25 - 0.25 + ... = 4, squares 5 and 5; the ranks are the numbers
    "pearson": 0.8,
    "spearman": 0.8,
}
RATE, DECAY, EPSILON, STEPS = 0.1, 0.01, 1e-6, 3  # of the optimizer's question


class Expected:
    """What to ask, and how to judge answers."""

    def __init__(self, golden: pathlib.Path, one_file: pathlib.Path, lines: Sequence[str], vocab_file: str):
        spec = importlib.util.spec_from_file_location("bert_in_one_file", one_file)
        assert spec and spec.loader
        self.bert = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.bert)
        self.golden, self.lines = golden, list(lines)
        rows = read_json(golden / "tokenizer.json")
        self.vocab_files = {form: golden / f"vocab_{form}.txt" for form in ("uncased", "cased")}
        self.vocab_files["text"] = pathlib.Path(vocab_file)
        self.vocabularies = {kind: self.bert.read_vocabulary(path) for kind, path in self.vocab_files.items()}
        self.texts = {
            "uncased": [row["text"] for row in rows],
            "cased": [row["text"] for row in rows],
            "text": self.lines,
        }
        self.tokens = {form: [row[form] for row in rows] for form in ("uncased", "cased")}
        self.tokens["text"] = [self.bert.tokenize(line, self.vocabularies["text"]) for line in self.lines]
        self.pairs = read_json(golden / "classifier_features.json")
        rng = np.random.default_rng(0)
        self.batch = dict(np.load(golden / "tf1_bert" / "inputs.npz"))
        seen = self.batch["input_mask"][:, :, None]
        self.directions = {
            "sequence_output": (rng.normal(size=(4, 24, 32)) * seen).astype("float32"),
            "pooled_output": rng.normal(size=(4, 32)).astype("float32"),
        }
        self.weight = rng.normal(size=(20, 8))
        self.gradients = [rng.normal(size=(20, 8)) for _ in range(STEPS)]

    def write_questions(self, work: pathlib.Path) -> None:
        """Writes the files that `answer.py` reads."""
        from tokenizers.implementations import BertWordPieceTokenizer
        from tokenizers.processors import TemplateProcessing

        for kind, path in self.vocab_files.items():
            shutil.copyfile(path, work / f"vocab_{kind}.txt")
            tokenizer = BertWordPieceTokenizer(str(path), lowercase=kind != "cased")
            special = [(token, self.vocabularies[kind][token]) for token in ("[CLS]", "[SEP]")]
            single, pair = "[CLS] $A [SEP]", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
            tokenizer.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=special)
            tokenizer.save(str(work / f"tokenizer_{kind}.json"))
        np.savez(work / "batch.npz", **self.batch)
        np.savez(work / "directions.npz", **self.directions)
        np.savez(work / "adamw.npz", weight=self.weight, gradients=np.array(self.gradients))
        for name in ("squad_v1.json", "squad_v1_features.json", "squad_v1_logits.npz"):
            shutil.copyfile(self.golden / name, work / name)
        flags = read_json(self.golden / "generator_base.json")["flags"]
        self.questions = {
            "texts": self.texts,
            "pairs": [[row["text_a"], row["text_b"]] for row in self.pairs["rows"]],
            "max_seq_length": self.pairs["max_seq_length"],
            "instances": flags | {"input_file": str(self.golden / "text_a.txt")},
            "adamw": {"rate": RATE, "decay": DECAY, "epsilon": EPSILON},
            "glue": {name: SCORES[name] for name in ("labels", "predictions", "x", "y")},
        }
        self._write(work, self.questions)

    def _write(self, work: pathlib.Path, questions: dict[str, Any]) -> None:
        (work / "questions.json").write_text(json.dumps(questions), encoding="utf-8")

    @contextlib.contextmanager
    def asking(self, work: pathlib.Path, kind: str, texts: list[str]) -> Iterator[None]:
        """Asks for the tokens of other texts alone."""
        before = self.texts[kind], self.tokens[kind]
        tokens = [self.bert.tokenize(text, self.vocabularies[kind], kind == "cased") for text in texts]
        self.texts[kind], self.tokens[kind] = texts, tokens
        self._write(work, self.questions | {"texts": {kind: texts}, "only": "tokens"})
        try:
            yield
        finally:
            self.texts[kind], self.tokens[kind] = before
            self._write(work, self.questions)

    def judge(self, check: str, answer: Any) -> dict[str, Any]:
        """Returns whether an answer is right, a figure, and the smallest case that is not."""
        name, _, kind = check.partition(" ")
        return getattr(self, f"_judge_{name}")(answer, *([kind] if kind else []))

    def _judge_tokens(self, answer: Any, kind: str) -> dict[str, Any]:
        vocabulary = self.vocabularies[kind]
        rows = zip(self.texts[kind], self.tokens[kind], answer, strict=True)
        wrong = [(text, tokens, ids) for text, tokens, ids in rows if [vocabulary[token] for token in tokens] != ids]
        words = list(vocabulary)
        result: dict[str, Any] = {"passed": not wrong, "figure": f"{len(wrong):,} of {len(answer):,}"}
        if wrong:
            wrong.sort(key=lambda row: len(row[0]))
            text, tokens, ids = wrong[0]
            result["texts"] = [row[0] for row in wrong[:SHOWN]]
            found = [words[number] for number in ids]
            result["case"] = f"{short(text)}: expected {short(tokens)}, got {short(found)}"
        return result

    def _judge_offsets(self, answer: Any) -> dict[str, Any]:
        """A token's characters, normalised, are the token's; of tokens that are 2018's."""
        words, wrong, count = list(self.vocabularies["uncased"]), [], 0
        for text, tokens, row in zip(self.texts["uncased"], self.tokens["uncased"], answer, strict=True):
            if [words[number] for number, _, _ in row] != tokens:
                continue
            for token, (_, start, end) in zip(tokens, row):
                count += 1
                if token != "[UNK]" and self._plain(text[start:end]) != token.removeprefix("##").replace("ς", "σ"):
                    wrong.append((text, token, start, end))
        case = min(wrong, key=lambda row: len(row[0]), default=None)
        return {
            "passed": not wrong,
            "figure": f"{len(wrong):,} of {count:,} tokens",
            "case": case and f"{case[0]!a}: {case[1]!a} at {case[2]} to {case[3]}",
        }

    def _plain(self, text: str) -> str:
        kept = "".join(char if char.isspace() else self.bert.spaced(char, True) for char in text)
        lowered = unicodedata.normalize("NFD", kept.lower())
        plain = "".join(self.bert.spaced(char, False).strip() for char in lowered)
        return plain.replace("ς", "σ")  # which of the two a sigma becomes depends on what stands beside it

    def _judge_pairs(self, answer: Any) -> dict[str, Any]:
        wrong = []
        for row, (ids, segments) in zip(self.pairs["rows"], answer, strict=True):
            size = sum(row["input_mask"])
            if (ids, segments) != (row["input_ids"][:size], row["segment_ids"][:size]):
                wrong.append((row["text_a"], row["text_b"], row["input_ids"][:size], ids))
        case = min(wrong, key=lambda row: len(row[0] + (row[1] or "")), default=None)
        return {
            "passed": not wrong,
            "figure": f"{len(wrong)} of {len(answer)} rows",
            "case": case and f"{case[:2]!a}: expected {case[2]}, got {case[3]}",
        }

    def _numbers(self, pairs: dict[str, tuple[Any, Any]]) -> dict[str, Any]:
        errors = {name: np.abs(np.asarray(a) - b).max() / np.abs(b).max() for name, (a, b) in pairs.items()}
        worst = max(errors, key=lambda name: errors[name])
        passed = bool(errors[worst] <= BOUND)
        return {
            "passed": passed,
            "figure": f"{errors[worst]:.1e}",
            "case": f"{worst}: {errors[worst]:.1e} of its largest",
        }

    def _judge_outputs(self, answer: Any) -> dict[str, Any]:
        wanted, seen = np.load(self.golden / "tf1_bert" / "outputs.npz"), self.batch["input_mask"].astype(bool)
        pairs = {name: (np.asarray(answer[name]), wanted[name]) for name in self.directions}
        pairs["sequence_output"] = tuple(part[seen] for part in pairs["sequence_output"])
        return self._numbers(pairs)

    def _judge_gradient(self, answer: Any) -> dict[str, Any]:
        import tensorflow as tf

        weights = self.bert.read_weights(str(self.golden / "tf1_bert" / "bert_model.ckpt"))
        table = tf.constant(weights["bert/embeddings/word_embeddings"])
        with tf.GradientTape() as tape:
            tape.watch(table)
            layers, pooled = self.bert.encode(weights | {"bert/embeddings/word_embeddings": table}, self.batch, 3, 4)
            found = {"sequence_output": layers[-1], "pooled_output": pooled}
            total = sum(tf.reduce_sum(found[name] * value) for name, value in self.directions.items())
        wanted = tf.convert_to_tensor(tape.gradient(total, table)).numpy()
        return self._numbers({"word embeddings": (answer, wanted)})

    def _judge_masked_lm(self, answer: Any) -> dict[str, Any]:
        wanted = np.load(self.golden / "tf1_bert" / "outputs.npz")["masked_lm_log_probs"]
        return self._numbers({"log-probabilities": (log_softmax(answer).reshape(wanted.shape), wanted)})

    def _judge_next_sentence(self, answer: Any) -> dict[str, Any]:
        wanted = np.load(self.golden / "tf1_bert" / "outputs.npz")["next_sentence_log_probs"]
        return self._numbers({"log-probabilities": (log_softmax(answer), wanted)})

    def _judge_adamw(self, answer: Any) -> dict[str, Any]:
        weights, moments = {"w": self.weight}, {}
        for gradient in self.gradients:
            weights = self.bert.optimizer_step(weights, {"w": gradient}, moments, RATE)
        return self._numbers({f"the weight after {STEPS} steps": (answer, weights["w"])})

    def _judge_instances(self, answer: Any) -> dict[str, Any]:
        import tensorflow as tf

        wanted, dataset = np.load(self.golden / "generator_base.npz"), tf.data.TFRecordDataset(answer)
        rows = [tf.train.Example.FromString(row.numpy()).features.feature for row in dataset]
        total, wrong = len(wanted["input_ids"]), []
        for number in range(total):
            for name in wanted:
                kind = "float_list" if wanted[name].dtype == np.float32 else "int64_list"
                if (
                    number >= len(rows)
                    or list(getattr(rows[number][name], kind).value) != wanted[name][number].tolist()
                ):
                    wrong.append((number, name))
        count = len({number for number, _ in wrong})
        return {
            "passed": not wrong and len(rows) == total,
            "figure": f"{count} of {total}, {len(rows)} written",
            "case": wrong and f"instance {wrong[0][0]}, {wrong[0][1]}",
        }

    def _judge_squad(self, answer: Any) -> dict[str, Any]:
        wanted = read_json(self.golden / "squad_v1_features.json")["predictions"]
        wrong = [(key, text, answer.get(key)) for key, text in wanted.items() if answer.get(key) != text]
        case = min(wrong, key=lambda row: len(row[1]), default=None)
        return {
            "passed": not wrong,
            "figure": f"{len(wrong)} of {len(wanted)}",
            "case": case and f"question {case[0]}: expected {case[1]!a}, got {case[2]!a}",
        }

    def _judge_glue(self, answer: Any) -> dict[str, Any]:
        return self._numbers({name: (answer[name], np.array(SCORES[name])) for name in answer})


def short(value: Any) -> str:
    """Returns a text or a list in ASCII, the end left out if it is long."""
    text = ascii(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN // 2]}... ({len(value)} in all)"


def log_softmax(logits: Any) -> np.ndarray:
    """Returns log softmax over the last axis in float64."""
    logits = np.asarray(logits, np.float64)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def read_json(path: pathlib.Path) -> Any:
    """Returns what a file of JSON holds."""
    return json.loads(path.read_text(encoding="utf-8"))
