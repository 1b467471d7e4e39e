"""Everything of ours that a `.keras` file can hold: importing this registers the classes with Keras (`official_bert`
does it).

It runs on every backend of Keras; the optimizer, which is TensorFlow's, is registered on that one.
"""

import types

import keras

from official_bert.layers import adapters, attention, embeddings, heads, layer_mixing, layer_norm, transformer
from official_bert.layers.relatives import (
    convolution,
    crf,
    disentangled_attention,
    more_norms,
    pre_norm,
    relative_positions,
)
from official_bert.models import bi_encoder, classifier, encoder, pretrainer, replaced_tokens, span_boundary
from official_bert.models.encoder_decoder import model as encoder_decoder
from official_bert.tasks.tagging import word_tagger

MODULES: tuple[types.ModuleType, ...] = (
    adapters,
    attention,
    bi_encoder,
    classifier,
    convolution,
    crf,
    disentangled_attention,
    embeddings,
    encoder,
    encoder_decoder,
    heads,
    layer_mixing,
    layer_norm,
    more_norms,
    pre_norm,
    pretrainer,
    relative_positions,
    replaced_tokens,
    span_boundary,
    transformer,
    word_tagger,
)
if keras.backend.backend() == "tensorflow":
    from official_bert.training import optimization

    MODULES = (*MODULES, optimization)
