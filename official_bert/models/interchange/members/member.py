"""What a table of a member holds, and how it translates names of weights and `config.json` both ways (Hugging Face's side)."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from official_bert.model_config import ModelConfig
from official_bert.models.interchange.members import known_keys
from official_bert.models.interchange.names import DENSE, NORM, NameTable, layer_rows, rows
from official_bert.models.interchange.stored_models import HEAD_PREFIXES, Head

LINEAR = ("weight", "bias")
Rows = Iterable[tuple[str, str]]
ACTS = {"gelu": "gelu_erf", "gelu_python": "gelu_erf", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu",
        "relu": "relu", "tanh": "tanh", "linear": "linear"}
OUR_ACTS = {"gelu_erf": "gelu", "gelu": "gelu_new", "relu": "relu", "tanh": "tanh", "linear": "linear"}
ACT_FIELDS = ("hidden_act", "pooler_act", "masked_lm_act", "convolution_act")
# The keys of `config.json` that most members share, by our fields.
SIZES = {name: name for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                                 "max_position_embeddings", "type_vocab_size", "initializer_range")}
USUAL_KEYS = SIZES | {name: name for name in ("hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob")} | {
    "layer_norm_epsilon": "layer_norm_eps"}


# The parts of a layer under BERT's names.
PARTS = {"attention/query": "attention.self.query", "attention/key": "attention.self.key", "attention/value": "attention.self.value",
         "attention/output": "attention.output.dense", "attention_LayerNorm": "attention.output.LayerNorm",
         "intermediate": "intermediate.dense", "output": "output.dense", "output_LayerNorm": "output.LayerNorm"}


def layers(theirs: str, names: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, str]]:
    """The rows of a layer; `names` are the parts that are not called as BERT's, and those that BERT does not have."""
    return layer_rows(theirs, {**PARTS, **names}, ".", LINEAR)


def usual_forms(pooler: Rows, own_pooler: bool = False) -> dict[str, "Form"]:
    """The classes for texts, choices, tokens and answers under BERT's names; with `own_pooler`, that for texts has its own (RoBERTa)."""
    classifier = output("classifier/", "classifier.")
    own = Form("classifier", dense("pooler/", "classifier.dense."), output("classifier/", "classifier.out_proj."))
    return {"ForSequenceClassification": own if own_pooler else Form("classifier", pooler, classifier),
            "ForMultipleChoice": Form("choice", pooler, classifier),
            "ForTokenClassification": Form("tagger", output("tagger/", "classifier.")),
            "ForQuestionAnswering": Form("span", output("span/", "qa_outputs."))}


def tables(prefix: str, names: Iterable[str] = ("word_embeddings", "token_type_embeddings", "position_embeddings")) -> list:
    """The rows of embedding tables and their layer norm under BERT's names."""
    return [*((f"embeddings/{name}", f"{prefix}embeddings.{name}.weight") for name in names),
            *norm("embeddings/LayerNorm/", f"{prefix}embeddings.LayerNorm.")]


def dense(ours: str, theirs: str) -> list[tuple[str, str]]:
    """The rows of a product with a bias."""
    return rows(ours, theirs, DENSE, LINEAR)


def norm(ours: str, theirs: str) -> list[tuple[str, str]]:
    """The rows of a layer norm."""
    return rows(ours, theirs, NORM, LINEAR)


def words(transform: str, layer_norm: str, bias: str) -> list[tuple[str, str]]:
    """The rows of the head for words."""
    return [*dense("masked_lm/transform/", transform), *norm("masked_lm/LayerNorm/", layer_norm), *rows("masked_lm/output_bias", bias)]


def output(ours: str, theirs: str) -> list[tuple[str, str]]:
    """The rows of an output layer."""
    return rows(ours, theirs, ("output_weights", "output_bias"), LINEAR)


class Form:
    """A class of a member: its head, and the names of the weights that it has beside the encoder's."""

    def __init__(self, head: Head, *rows: Rows):
        self.head, self.rows = head, tuple(row for part in rows for row in part)


def _nothing(_: Any) -> dict[str, Any]:
    return {}


Tensors = dict[str, np.ndarray]


def _same(tensors: Tensors, _: ModelConfig) -> Tensors:
    return tensors


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Member:
    """A member of the family: its classes, names and keys. Names of classes begin with a stem and end with a key of `forms`."""

    stems: Mapping[str, str]  # by model_type; the first is written unless the model says another
    prefix: str  # of the encoder's tensors in classes with heads
    encoder: Rows
    forms: Mapping[str, Form]
    keys: Mapping[str, str] = dataclasses.field(default_factory=lambda: USUAL_KEYS)  # by our fields: keys with the same meaning
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # our fields that have this value in every model
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of their keys, if a file leaves them out
    switches: Mapping[str, tuple] = dataclasses.field(default_factory=dict)  # more keys, with the values that are computed
    used: tuple[str, ...] = ()  # more keys that `fields` reads or that are known to change nothing
    fields: Callable[[Mapping[str, Any]], dict[str, Any]] = _nothing  # of their values: our fields that are no copies
    values: Callable[[ModelConfig], dict[str, Any]] = _nothing  # the reverse of `fields`
    tied: Mapping[str, str] = dataclasses.field(default_factory=dict)  # second names of weights; files of some versions have both
    unpack: Callable[[Tensors, ModelConfig], Tensors] = _same  # of a file's tensors, to the names and shapes of the table
    pack: Callable[[Tensors, ModelConfig], Tensors] = _same  # the reverse
    sentence_task: str = ""  # that the head for sentences learned, if the files of all models say so by their kind

    @property
    def title(self) -> str:
        """The stem of the classes that are written unless the model says another."""
        return next(iter(self.stems.values()))

    def classes(self, model_type: str) -> dict[str, Form]:
        """The forms by the names of their classes."""
        return {self.stems[model_type] + suffix: form for suffix, form in self.forms.items()}

    def table(self, form: Form | None = None) -> NameTable:
        """The names of a class; those of other classes follow if they name other weights, because files hold more than their class."""
        names: dict[str, str] = {}
        their_names: set[str] = set()
        for ours, theirs in [*self.encoder, *(form.rows if form else ()), *(row for other in self.forms.values() for row in other.rows)]:
            if ours not in names and theirs not in their_names:
                names[ours] = theirs
                their_names.add(theirs)
        return NameTable(names.items())

    def form_of(self, head: Head, names: Iterable[str]) -> tuple[str, Form]:
        """Returns suffix and form of the class with a head and its weights. Raises ValueError if there is none."""
        of_heads = {name for name in names if name.startswith(tuple(HEAD_PREFIXES))}
        forms = {suffix: form for suffix, form in self.forms.items() if form.head == head}
        for suffix, form in forms.items():
            if of_heads == {ours for ours, _ in form.rows if ours.startswith(tuple(HEAD_PREFIXES))}:
                return suffix, form
        having = {ours for form in forms.values() for ours, _ in form.rows}
        lacking = ", ".join(sorted(of_heads - having or of_heads)[:3])
        raise ValueError(f"no class of Hugging Face's {self.title} has the model's head: {lacking}")

    def read_config(self, values: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Translates a `config.json` to the keys of ModelConfig. Raises ValueError for what is not computed here."""
        values = {**self.defaults, **values}
        try:
            known_keys.check(values, self.switches, self._read)
            fields = {ours: values[theirs] for ours, theirs in self.keys.items() if theirs in values}
            for ours in ACT_FIELDS:
                if ours in self.keys and not (isinstance(act := fields.get(ours, "gelu"), str) and act in ACTS):
                    raise ValueError(f"{self.keys[ours]}: expected one of {sorted(ACTS)}, got {act!r}")
                if ours in self.keys:
                    fields[ours] = ACTS[fields.get(ours, "gelu")]
            return {**fields, **self.fixed, **self.fields(values)}
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        except (TypeError, LookupError, AttributeError, ArithmeticError) as error:  # a text for a number, and the like
            raise ValueError(f"{path}: expected the values of a configuration of {self.title}: {error}") from None

    def remarks(self, values: Mapping[str, Any]) -> list[str]:
        """Returns remarks on the keys of a `config.json` that are passed over."""
        return known_keys.remarks(values, self._read)

    @property
    def _read(self) -> frozenset[str]:
        """Their keys that the table reads."""
        return frozenset((*self.keys.values(), *self.switches, *self.used))

    def write_config(self, config: ModelConfig) -> dict[str, Any]:
        """Translates a configuration to the keys of `config.json`."""
        copied = {theirs: getattr(config, ours) for ours, theirs in self.keys.items()}
        acts = {self.keys[ours]: OUR_ACTS[getattr(config, ours)] for ours in ACT_FIELDS if ours in self.keys}
        return copied | acts | self.values(config)

    def differences(self, config: ModelConfig) -> list[str]:
        """Returns the fields of a configuration that this member does not have, or has with another value."""
        try:
            again = ModelConfig(**self.read_config(self.write_config(config), ""))
        except (KeyError, TypeError, ValueError):
            return list(ModelConfig.__dataclass_fields__)
        again, config = (dataclasses.replace(one, masked_lm_act=one.masked_lm_act or one.hidden_act) for one in (again, config))
        return [name for name in ModelConfig.__dataclass_fields__ if getattr(again, name) != getattr(config, name)]
