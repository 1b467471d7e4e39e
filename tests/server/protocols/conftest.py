"""Models of the heads that other protocols ask for, without BERT, and servers of them."""

import shutil

import made_serving
import pytest
import tensorflow as tf

LONGEST = 20  # characters, from which on a text is truncated


class Heads(tf.Module):
    """A token is a character, a vector the numbers of characters, of spaces, 3 and 4; so everything can be counted by
    hand.
    """

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def vectors(self, text):
        length = tf.strings.length(text, unit="UTF8_CHAR")
        spaces = tf.strings.length(tf.strings.regex_replace(text, "[^ ]", ""))
        rows = [
            tf.cast(length, tf.float32),
            tf.cast(spaces, tf.float32),
            tf.fill(tf.shape(text), 3.0),
            tf.fill(tf.shape(text), 4.0),
        ]
        return {"embedding": tf.stack(rows, 1), "token_count": length + 2, "truncated": length > LONGEST}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, name) for name in ("input_ids", "input_mask", "segment_ids")
        ],
        autograph=False,
    )
    def vectors_of_ids(self, input_ids, input_mask, segment_ids):
        total = tf.reduce_sum(input_ids * input_mask + segment_ids, 1)
        return {"embedding": tf.stack([tf.cast(total, tf.float32)] + [tf.ones_like(total, tf.float32)] * 3, 1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def int8(self, text):
        return {"embedding": tf.cast(self.vectors(text)["embedding"], tf.int8), "token_count": tf.strings.length(text)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def binary(self, text):
        return {"embedding": tf.cast(self.vectors(text)["embedding"], tf.uint8), "token_count": tf.strings.length(text)}

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name) for name in ("text", "text_pair")], autograph=False
    )
    def scores(self, text, text_pair):
        """How much longer the second text is."""
        lengths = [tf.strings.length(part, unit="UTF8_CHAR") for part in (text, text_pair)]
        return {"score": tf.cast(lengths[1] - lengths[0], tf.float32), "truncated": lengths[1] > LONGEST}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")], autograph=False)
    def tokens(self, text):
        """Its bytes as ids, the number of the place as weight; 0 for what fills a row up."""
        codes = tf.strings.unicode_decode(text, "UTF-8").to_tensor()
        places = tf.range(1, tf.shape(codes)[1] + 1)[None] * tf.cast(codes > 0, tf.int32)
        return {
            "token_ids": codes,
            "weights": tf.cast(places, tf.float32),
            "truncated": tf.strings.length(text) > LONGEST,
        }


@pytest.fixture(scope="session")
def heads_root(tmp_path_factory, demo_root):
    """Returns a folder with models/NAME/FORM/1, and one of the demo models."""
    root, model = tmp_path_factory.mktemp("heads"), Heads()
    for name, function in (
        ("vectors/text", model.vectors),
        ("vectors/ids", model.vectors_of_ids),
        ("scores/text", model.scores),
        ("sparse/text", model.tokens),
        ("int8/text", model.int8),
        ("binary/text", model.binary),
    ):
        tf.saved_model.save(model, str(root / name / "1"), signatures={"serving_default": function})
    shutil.copytree(root / "vectors/ids", root / "own/ids")
    (root / "own/ids/1/assets/about.json").write_text('{"task": "retrieval", "first_id": 101, "last_id": 102}')
    demo = made_serving.Demo(1)
    tf.saved_model.save(demo, str(root / "work/1"), signatures={"serving_default": demo.work})
    return root


@pytest.fixture(scope="session")
def serve(heads_root, demo_root):
    """Returns a function that runs a server of some models; each choice of models is started once."""
    from official_bert.server import server_config
    from official_bert.server.server import ServerOptions

    paths = {
        "vectors": heads_root / "vectors/text",
        "vectors-ids": heads_root / "vectors/ids",
        "own-ids": heads_root / "own/ids",
        "scores": heads_root / "scores/text",
        "sparse": heads_root / "sparse/text",
        "int8": heads_root / "int8/text",
        "binary": heads_root / "binary/text",
        "work": heads_root / "work",
        "demo": demo_root / "demo",
    }
    running, contexts = {}, []

    def of(*names, **options):
        key = (names, tuple(sorted(options.items())))
        if key not in running:
            models = [server_config.ServedModelConfig(name=name, base_path=str(paths[name])) for name in names]
            context = made_serving.embedded(
                ServerOptions(models=models, rest_port=0, grpc_port=0, poll_seconds=0.2, drain_seconds=5, **options)
            )
            contexts.append(context)
            running[key] = context.__enter__()
        return running[key]

    yield of
    for context in contexts:
        context.__exit__(None, None, None)
