"""BERT (Devlin et al., 2018) in one file: tokens, training instances, model, losses and optimizer.

To be read beside the paper. It computes what the code of 2018 computes, with plain Python, NumPy and TensorFlow
operations, and imports nothing of official_bert: a test compares both with each other and with results of 2018.

B rows, S tokens of a row, D hidden size, N heads, H = D / N, V words, P predicted positions of a row.
"""

import random
import re
import unicodedata

import numpy as np
import tensorflow as tf

# ---- tokens (section 3; Wu et al., 2016)
IDEOGRAPHS = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)]
IDEOGRAPHS += [(0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def read_vocabulary(path):
    """Returns the number of each word: its line in the file."""
    with open(path, encoding="utf-8") as file:
        return {line.strip(): number for number, line in enumerate(file)}


def spaced(char, is_cased):
    """Returns what a character becomes before words are split at spaces."""
    category = unicodedata.category(char)
    if char in " \t\n\r" or category == "Zs":
        return " "
    if category in ("Cc", "Cf") or char == "\ufffd" or (category == "Mn" and not is_cased):
        return ""  # controls, and accents, which NFD has made characters of their own
    is_symbol = char.isascii() and char.isprintable() and not char.isalnum()  # $ and ~ are no punctuation in Unicode
    is_ideograph = any(first <= ord(char) <= last for first, last in IDEOGRAPHS)
    return f" {char} " if is_symbol or category.startswith("P") or is_ideograph else char


def tokenize(text, vocabulary, is_cased=False):
    """Returns the WordPieces of a text."""
    # Controls go first: what they separate may be one character in NFD. Then words are lower-cased.
    text = "".join(char if char.isspace() else spaced(char, True) for char in text)
    text = text if is_cased else unicodedata.normalize("NFD", text.lower())
    words = "".join(spaced(char, is_cased) for char in text).split()
    return [piece for word in words for piece in pieces_of(word, vocabulary)]


def pieces_of(word, vocabulary):
    """Splits a word into the longest known pieces, from left to right; a word that cannot be split is unknown."""
    pieces, start = [], 0
    while start < len(word) <= 200:
        prefix = "##" if start else ""
        end = len(word)
        while end > start and prefix + word[start:end] not in vocabulary:
            end -= 1
        if end == start:
            return ["[UNK]"]
        pieces.append(prefix + word[start:end])
        start = end
    return pieces or ["[UNK]"]


# ---- training instances (section 3.1, A.1, A.2)
def read_documents(path, vocabulary):
    """Returns the documents of a file: a sentence a line, a blank line between documents."""
    with open(path, encoding="utf-8") as file:
        texts = re.split(r"\n\s*\n", file.read())
    documents = ([tokens for line in text.split("\n") if (tokens := tokenize(line, vocabulary))] for text in texts)
    return [document for document in documents if document]


def make_instances(documents, vocabulary, seed, copies, length, max_predictions, rate=0.15, share_of_short=0.1):
    """Returns the instances of a corpus, in 2018's order for a seed: each a dict of numbers, padded with zeros."""
    rng = random.Random(seed)
    rng.shuffle(documents)
    instances = []
    for number in [*range(len(documents))] * copies:
        for a, b, is_random in sentence_pairs(documents, number, length - 3, share_of_short, rng):
            instances.append(masked_instance(a, b, is_random, vocabulary, length, max_predictions, rate, rng))
    rng.shuffle(instances)
    return instances


def sentence_pairs(documents, number, most, share_of_short, rng):
    """Cuts a document into pairs of segments; half of the second ones are from another document (task 2)."""
    document = documents[number]
    target = rng.randint(2, most) if rng.random() < share_of_short else most  # fine-tuning has short rows, too
    chunk, place = [], 0
    while place < len(document):
        chunk.append(document[place])
        if place == len(document) - 1 or sum(map(len, chunk)) >= target:
            cut = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a, b = [[token for sentence in part for token in sentence] for part in (chunk[:cut], chunk[cut:])]
            if is_random := len(chunk) == 1 or rng.random() < 0.5:
                b = random_segment(documents, number, target - len(a), rng)
                place -= len(chunk) - cut  # the sentences that were not used begin the next pair
            while len(a) + len(b) > most:  # the longer one loses a token at either end
                (a if len(a) > len(b) else b).pop(0 if rng.random() < 0.5 else -1)
            yield a, b, is_random
            chunk = []
        place += 1


def random_segment(documents, number, size, rng):
    """Returns sentences of another document, from a random one on, until there are `size` tokens."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != number:
            break
    start, tokens = rng.randint(0, len(documents[other]) - 1), []
    for sentence in documents[other][start:]:
        tokens += sentence
        if len(tokens) >= size:
            break
    return tokens


def masked_instance(a, b, is_random, vocabulary, length, max_predictions, rate, rng):
    """Packs a pair into a row and hides 15 % of it: 80 % [MASK], 10 % unchanged, 10 % a random word (task 1)."""
    tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    places = [place for place, token in enumerate(tokens) if token not in ("[CLS]", "[SEP]")]
    rng.shuffle(places)
    words, hidden = list(vocabulary), {}
    for place in places[: min(max_predictions, max(1, round(len(tokens) * rate)))]:
        hidden[place] = tokens[place]
        if rng.random() < 0.8:
            tokens[place] = "[MASK]"
        elif rng.random() >= 0.5:
            tokens[place] = words[rng.randint(0, len(words) - 1)]
    positions = sorted(hidden)
    ids = [vocabulary[token] for token in tokens]
    return {
        "input_ids": padded(ids, length),
        "input_mask": padded([1] * len(ids), length),
        "segment_ids": padded([0] * (len(a) + 2) + [1] * (len(b) + 1), length),
        "masked_lm_positions": padded(positions, max_predictions),
        "masked_lm_ids": padded([vocabulary[hidden[place]] for place in positions], max_predictions),
        "masked_lm_weights": padded([1.0] * len(positions), max_predictions),
        "next_sentence_labels": [int(is_random)],
    }


def padded(values, size):
    """Returns `size` values, zeros at the end."""
    return values + [0] * (size - len(values))


# ---- model (section 3; Vaswani et al., 2017)
def read_weights(checkpoint, dtype=np.float64):
    """Returns the weights of a checkpoint of 2018 by name, in float64: a reference rounds as little as possible."""
    reader = tf.train.load_checkpoint(checkpoint)
    names = [name for name in reader.get_variable_to_shape_map() if re.match(r"(bert|cls)/.*(?<!_m|_v)$", name)]
    return {name: reader.get_tensor(name).astype(dtype) for name in names}


def dense(w, name, x):
    """x [...,D] -> [...,E]."""
    return tf.tensordot(x, w[f"{name}/kernel"], 1) + w[f"{name}/bias"]


def layer_norm(w, name, x):
    """Ba et al., 2016: mean 0 and variance 1 over the last axis, then a learned scale and shift."""
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    variance = tf.reduce_mean(centered**2, -1, keepdims=True)
    return centered / tf.sqrt(variance + 1e-12) * w[f"{name}/LayerNorm/gamma"] + w[f"{name}/LayerNorm/beta"]


def gelu(x):
    """The approximation of x Φ(x) by tanh (Hendrycks and Gimpel, 2016)."""
    return 0.5 * x * (1 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attention(w, name, x, mask, num_heads):
    """softmax(Q Kᵀ / √H) V, a head beside the other: x [B,S,D], mask [B,S] -> [B,S,D]."""

    def heads(part):
        projected = dense(w, f"{name}/attention/self/{part}", x)
        shape = (x.shape[0], x.shape[1], num_heads, x.shape[2] // num_heads)
        return tf.transpose(tf.reshape(projected, shape), [0, 2, 1, 3])  # [B,N,S,H]

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(query.shape[-1])  # [B,N,S,S]
    scores -= 10000.0 * (1 - tf.cast(mask, x.dtype))[:, None, None, :]  # padding is not seen
    context = tf.transpose(tf.matmul(tf.nn.softmax(scores), value), [0, 2, 1, 3])
    return dense(w, f"{name}/attention/output/dense", tf.reshape(context, x.shape))


def encode(w, batch, num_layers, num_heads):
    """Returns the embeddings and the output of each layer, [B,S,D] each, and the pooled vector of [CLS], [B,D]."""
    x = tf.gather(w["bert/embeddings/word_embeddings"], batch["input_ids"])
    x += tf.gather(w["bert/embeddings/token_type_embeddings"], batch["segment_ids"])
    x += w["bert/embeddings/position_embeddings"][: x.shape[1]]
    outputs = [layer_norm(w, "bert/embeddings", x)]
    for number in range(num_layers):
        name, x = f"bert/encoder/layer_{number}", outputs[-1]
        attended = attention(w, name, x, batch["input_mask"], num_heads)
        x = layer_norm(w, f"{name}/attention/output", x + attended)
        inner = gelu(dense(w, f"{name}/intermediate/dense", x))
        outputs.append(layer_norm(w, f"{name}/output", x + dense(w, f"{name}/output/dense", inner)))
    return outputs, tf.tanh(dense(w, "bert/pooler/dense", outputs[-1][:, 0]))


# ---- losses (section 3.1)
def log_probabilities(w, batch, sequence, pooled):
    """Returns those of the words at the hidden positions, [B,P,V], and of "next" and "random", [B,2]."""
    hidden = tf.gather(sequence, batch["masked_lm_positions"], batch_dims=1)  # [B,P,D]
    hidden = layer_norm(w, "cls/predictions/transform", gelu(dense(w, "cls/predictions/transform/dense", hidden)))
    words = tf.tensordot(hidden, w["bert/embeddings/word_embeddings"], [[-1], [-1]]) + w["cls/predictions/output_bias"]
    pair = tf.matmul(pooled, w["cls/seq_relationship/output_weights"], transpose_b=True)
    return tf.nn.log_softmax(words), tf.nn.log_softmax(pair + w["cls/seq_relationship/output_bias"])


def losses(w, batch, num_layers, num_heads):
    """Returns the mean losses of hidden words and of next sentences, whose sum is learned."""
    (*_, sequence), pooled = encode(w, batch, num_layers, num_heads)
    words, pair = log_probabilities(w, batch, sequence, pooled)
    of_words = -tf.gather(words, batch["masked_lm_ids"], batch_dims=2)
    weights = tf.cast(batch["masked_lm_weights"], of_words.dtype)
    of_pairs = -tf.gather(pair, batch["next_sentence_labels"], batch_dims=1)
    return tf.reduce_sum(of_words * weights) / (tf.reduce_sum(weights) + 1e-5), tf.reduce_mean(of_pairs)


# ---- optimizer (A.2; Kingma and Ba; Loshchilov and Hutter)
def rate_at(step, peak, warmup, total):
    """The learning rate of a step, from 0: up to the peak in a line, then down to 0."""
    return peak * step / warmup if step < warmup else peak * (1 - step / total)


def optimizer_step(w, gradients, moments, rate):
    """Returns the weights after a step of Adam without correction of bias, with decay beside it; changes `moments`."""
    norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
    new = {}
    for name, gradient in gradients.items():
        gradient = gradient / max(norm, 1.0)  # the norm of all gradients together is at most 1
        first, second = moments.get(name, (0.0, 0.0))
        first, second = moments[name] = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        decay = 0.0 if "LayerNorm" in name or name.endswith("bias") else 0.01
        new[name] = w[name] - rate * (first / (np.sqrt(second) + 1e-6) + decay * w[name])
    return w | new


def train_step(w, batch, moments, rate, num_layers, num_heads):
    """Returns the weights after a step on a batch, and both losses before it."""
    variables = {name: tf.constant(value) for name, value in w.items()}
    with tf.GradientTape() as tape:
        tape.watch(variables)
        both = losses(variables, batch, num_layers, num_heads)
    gradients = tape.gradient(both, variables)  # of the sum
    gradients = {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in gradients.items()}
    return optimizer_step(w, gradients, moments, rate), np.array(both)
