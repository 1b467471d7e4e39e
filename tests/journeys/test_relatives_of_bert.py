"""Stories of RoBERTa's and XLM-R's folders: every command with another encoder and its own tokenizer."""

import json

import made_checkpoints
import made_tokenizers
import pytest
from commands import SERVE, ask
from safetensors.numpy import load_file

import official_bert

QUICK = (
    "--init_checkpoint=hf --set=training.epochs=1 --set=training.batch_size=4 --set=options.max_seq_length=48 "
    "--set=training.report=false --allow_same_data"
)
SENTENCE = "The O\nferryman B-PER\nJones I-PER\ncrosses O\nRhine B-LOC\n. O\n"


@pytest.fixture(params=("roberta", "xlm_roberta"))
def family(request, person):
    """Returns a person whose folder `hf` holds a small model of the family in Hugging Face's layout, with its
    tokenizer.
    """
    made_checkpoints.write_relative(person.folder / "hf", request.param)
    return person


@pytest.mark.slow
@pytest.mark.parametrize("family", list(made_checkpoints.CLASSES), indirect=True)
def test_from_a_published_relative_to_a_served_tagger(family):
    (family.folder / "ner.conll").write_text("\n".join([SENTENCE] * 12))
    family.types(
        f"python -m official_bert.run_finetuning --task=ner {QUICK} --train_file=ner.conll --eval_file=ner.conll "
        "--output_dir=runs/ner",
        messages=(".*",),
    )
    family.types(
        "python -m official_bert.run_export --checkpoint=runs/ner --output=models/ner --warmup_batch_sizes=",
        messages=(".*",),
    )
    texts = ["The ferryman Jones crosses the Rhine.", "小船过河三次。", ""]
    by_rest, by_grpc = [], []
    family.types(
        f"{SERVE} --model_base_path=models/ner/text --model_name=ner",
        **ask("ner", texts, by_rest, by_grpc),
        messages=(".*",),
    )
    family.types(
        "python -m official_bert.run_predict --model=runs/ner --output_file=answers.jsonl "
        + " ".join(f"'{text}'" for text in texts[:2]),
        messages=(".*",),
    )
    answers = [json.loads(line) for line in (family.folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(answers) == 2
    for served in (by_rest, by_grpc):
        for text, answer in zip(texts, served):
            spans = [(start, end) for start, end in zip(answer["starts"], answer["ends"]) if end]
            # of the original text
            assert [text[start:end] for start, end in spans] == [word for word in answer["entities"] if word]
        for answer, other in zip(answers, served):
            assert [word for word in other["entities"] if word] == answer["entities"]


@pytest.mark.slow
def test_a_published_relative_learns_more_words_and_goes_back(family):
    (family.folder / "text.txt").write_text("\n\n".join(["\n".join(made_tokenizers.TEXT)] * 6) + "\n")
    family.types(
        "python tools/create_pretraining_data.py --input_file=text.txt --output_file=text.tfrecord --vocab_file=hf "
        "--max_seq_length=48 --max_predictions_per_seq=8 --sentence_task=none --do_whole_word_mask",
        messages=(".*",),
    )
    family.types(
        "python -m official_bert.run_pretraining --init_checkpoint=hf --input_file=text.tfrecord "
        "--output_dir=runs/more --num_train_steps=4 --max_seq_length=48 --max_predictions_per_seq=8 "
        "--set=training.batch_size=4 --set=optimizer.warmup_steps=1 --set=options.sentence_task=none",
        messages=(".*",),
    )
    done = family.types(
        "python tools/convert_checkpoint.py --from=ours --to=hugging_face --input=runs/more --output=back",
        messages=(".*",),
    )
    assert "largest difference 0.00e+00" in done.out
    written, before = (
        load_file(family.folder / "back/model.safetensors"),
        load_file(family.folder / "hf/model.safetensors"),
    )
    assert written.keys() <= before.keys() and len(written) > 50
    assert all(written[name].shape == before[name].shape for name in written)


@pytest.mark.slow
def test_a_published_relative_goes_on_at_1024_tokens(family):
    (family.folder / "text.txt").write_text("\n\n".join(["\n".join(made_tokenizers.TEXT * 6)] * 3) + "\n")
    family.types(
        "python tools/resize_checkpoint.py --init_checkpoint=hf --output_dir=long --max_seq_length=1024 "
        "--positions=repeat",
        messages=(".*",),
    )
    family.types(
        "python tools/create_pretraining_data.py --input_file=text.txt --output_file=text.tfrecord --vocab_file=long "
        "--max_seq_length=1024 --max_predictions_per_seq=160 --sentence_task=none --dupe_factor=2",
        messages=(".*",),
    )
    told = family.types(
        "python tools/inspect_records.py --input_file=text.tfrecord --vocab_file=long", messages=(".*",)
    ).out
    assert "of 1024 tokens" in told and "label 0: <s>" in told
    family.types(
        "python -m official_bert.run_pretraining --init_checkpoint=long --input_file=text.tfrecord "
        "--output_dir=runs/long --num_train_steps=2 --max_seq_length=1024 --max_predictions_per_seq=160 "
        "--set=training.batch_size=2 --set=optimizer.warmup_steps=1 --set=options.sentence_task=none",
        messages=(".*",),
    )
    family.types(
        "python -m official_bert.run_export --checkpoint=runs/long --output=models/long --warmup_batch_sizes=",
        messages=(".*",),
    )
    texts = [" ".join(made_tokenizers.TEXT[:3] * 4) + " the <mask> boat"]
    answers = [
        official_bert.Predictor(str(family.folder / folder))(texts)[0]["tokens"]
        for folder in ("runs/long", "models/long")
    ]
    assert answers[0] == answers[1] and len(answers[0]) == 1  # a blank far behind the old table's end


@pytest.mark.slow
def test_a_published_relative_answers_questions_and_labels(family):
    context = "The little boat of the ferryman crosses the river three times a day. 小船过河三次，船夫唱了一首歌。"
    answer = {"text": "the ferryman", "answer_start": context.index("the ferryman")}
    for name, question in (("train", "Who crosses the river?"), ("dev", "What crosses it?")):
        questions = [{"id": f"{name}{number}", "question": question, "answers": [answer]} for number in range(8)]
        (family.folder / f"{name}.json").write_text(
            json.dumps(
                {"version": "1.1", "data": [{"title": name, "paragraphs": [{"context": context, "qas": questions}]}]}
            )
        )
    family.types(
        f"python -m official_bert.run_finetuning --task=squad {QUICK} --train_file=train.json --eval_file=dev.json "
        "--output_dir=runs/squad --set=options.doc_stride=16 --set=options.max_query_length=16",
        messages=(".*",),
    )
    (family.folder / "train.csv").write_text(
        "text,label\n" + "".join(f"the boat {n} sings,a\nthe river {n} runs,b\n" for n in range(12))
    )
    family.types(
        f"python -m official_bert.run_finetuning --task=classification {QUICK} --train_file=train.csv "
        f"--output_dir=runs/labels",
        messages=(".*",),
    )
    for run, text in (("squad", "Who?\tThe little boat of the ferryman."), ("labels", "the boat sings")):
        family.types(
            f"python -m official_bert.run_export --checkpoint=runs/{run} --output=models/{run} --warmup_batch_sizes=",
            messages=(".*",),
        )
        asked = [
            family.types(f"python -m official_bert.run_predict --model={folder}/{run} '{text}'", messages=(".*",)).out
            for folder in ("runs", "models")
        ]
        assert asked[0] == asked[1]
