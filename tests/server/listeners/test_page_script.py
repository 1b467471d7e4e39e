"""The page's script in Node, without a browser: what it asks the server, and what it shows."""

import json
import re
import subprocess

import pytest
from needed_tools import need

from official_bert.server.listeners import page

# As much of a browser as the script needs, and a server whose second version, with other labels, comes after the page
# was loaded.
BROWSER = """
const elements = {}, asked = [];
let version = 1;
const made = () => ({children: [], append(...more) { this.children.push(...more); },
                     replaceChildren(...all) { this.children = all; }, addEventListener() {}});
globalThis.document = {getElementById: id => elements[id] ??= made(), createElement: made};
globalThis.fetch = async path => {
  asked.push(path);
  const tensors = {text: {dtype: "DT_STRING", tensor_shape: {dim: [{size: "-1"}]}}};
  const labels = version === 1 ? ["no", "yes"] : ["yes", "no"];
  const answers = {"/v1/models": {models: ["m"]}, "/v1/models/m/metadata": {
    model_spec: {name: "m", version: String(version)}, official_bert: {labels},
    metadata: {signature_def: {signature_def: {serving_default: {
      inputs: tensors, outputs: {label: {}, probabilities: {}}}}}}}};
  const predictions = [{label: labels[0], probabilities: [0.75, 0.25]}];
  return {ok: true, status: 200, json: async () => answers[path] || {predictions}};
};
"""
THEN = """
const texts = node => [node.textContent, ...(node.children || []).flatMap(texts)]
  .filter(text => typeof text === "string");
setTimeout(async () => {
  version = 2;
  byId("input-text").value = "good";
  await ask();
  console.log(JSON.stringify({shown: texts(byId("result")), path: asked.at(-1)}));
}, 0);
"""


KINDS = """
const tensors = names => Object.fromEntries(names.map(name => [name, {dtype: "DT_STRING", tensor_shape: {dim: []}}]));
const elements = {};
const made = () => ({children: [], append(...more) { this.children.push(...more); }, addEventListener() {},
                     replaceChildren(...all) { this.children = all; }});
globalThis.document = {getElementById: id => elements[id] ??= made(), createElement: made};
let refusals = REFUSALS;
globalThis.fetch = async path => {
  if (refusals-- > 0) return {ok: false, status: 503, json: async () => ({error: "version 1 is being loaded"})};
  return {ok: true, status: 200, json: async () => path === "/v1/models" ? {models: ["m"]} : {
    model_spec: {name: "m", version: "7"}, official_bert: ABOUT,
    metadata: {signature_def: {signature_def: {a: {inputs: tensors(INPUTS), outputs: tensors(OUTPUTS)}}}}}};
};
document.getElementById("model").value = "m";
"""
SHOWN = """
setTimeout(() => {
  const said = byId("result").children.map(each => each.textContent);
  setTimeout(() => console.log(JSON.stringify({said, about: byId("about").textContent,
    fields: byId("fields").children.filter(each => each.name).map(each => each.value)})), 1500 * REFUSALS);
}, 100);
"""


def run_script(before, after):
    """Runs the page's script in Node, and returns the JSON that `after` prints."""
    need("node")
    script = re.search("<script>(.*?)</script>", page.read(), re.DOTALL)[1].replace('"use strict";', "")
    finished = subprocess.run(["node", "-e", before + script + after], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def opened(inputs, outputs, about, refusals=0):
    """Returns what the page shows when it is opened: what is said, the description, the examples in the fields."""
    before = KINDS
    for name, value in (("INPUTS", inputs), ("OUTPUTS", outputs), ("ABOUT", about), ("REFUSALS", refusals)):
        before = before.replace(name, json.dumps(value))
    return run_script(before, SHOWN.replace("REFUSALS", str(refusals)))


@pytest.mark.parametrize(
    ("inputs", "outputs", "language", "fields"),
    [
        (["text"], ["tokens"], "de", ["Die Hauptstadt von [MASK] ist Paris."]),
        (
            ["context", "question"],
            ["answer"],
            "es",
            ["¿Dónde nació Ada Lovelace?", "Ada Lovelace nació en Londres en 1815."],
        ),
        (["text"], ["answer", "passes", "score", "tokens"], "en", ["Ada Lovelace was born in London in 1815."]),
        (["text"], ["entities", "types"], "ru", ["Ада Лавлейс родилась в Лондоне в 1815 году."]),
        (["text"], ["label"], "en", ["A fine film with a weak ending."]),
        (
            ["text", "text_pair"],
            ["label"],
            "fr",
            ["Ada Lovelace est née à Londres en 1815.", "Elle est née en Angleterre."],
        ),
        (["text", "text_pair"], ["score"], "zh", ["阿达·洛芙莱斯在哪里出生？", "阿达·洛芙莱斯1815年出生于伦敦。"]),
        (["text", "choices"], ["choice"], "nl", ["Ze opende de deur en", "ging naar binnen.\nat de hemel op."]),
        (["text"], ["embedding"], "xx", ["Ada Lovelace was born in London in 1815."]),
        (["text"], ["labels"], "constructor", ["A fine film with a weak ending."]),
    ],
)
def test_every_kind_has_an_example_in_the_language_of_the_model(inputs, outputs, language, fields):
    assert opened(inputs, outputs, {"language": language})["fields"] == fields


def test_the_page_says_what_a_model_is_and_waits_while_it_loads():
    about = {
        "task": "ner",
        "language": "de",
        "layers": 6,
        "hidden_size": 384,
        "weights": 22713216,
        "max_seq_length": 512,
        "labels": ["O", *(f"B-{number}" for number in range(9))],
    }
    shown = opened(["text"], ["entities"], about, refusals=2)
    assert shown["said"] == ["version 1 is being loaded"]
    assert shown["about"] == (
        "Mark the entities of a text. · task ner · German · 6 layers of 384 · 22,713,216 weights"
        " · up to 512 tokens · 10 labels: O, B-0, B-1, B-2, B-3, B-4, B-5, B-6, … · version 7"
    )


def test_a_newer_version_is_shown_with_its_own_labels():
    found = run_script(BROWSER + "document.getElementById('model').value = 'm';", THEN)
    assert found["shown"][:4] == ["yes", "0.750", "no", "0.250"]
    assert found["path"] == "/v1/models/m/versions/2:predict"


def test_an_answer_is_shown_as_each_pass_leaves_it():
    row = {"answer": "the first", "score": -0.5, "tokens": ["the", "first", "[SEP]", "[SEP]"], "passes": [2, 1, 2, 4]}
    then = """
const inside = (node, of) => (node.children || []).flatMap(of);
const text = node => typeof node === "string" ? node : (node.textContent ?? "") + inside(node, text).join("");
const marks = node => node.tag === "mark" ? [node.textContent] : inside(node, marks);
const [answer, {children: lines}] = showWritten(ROW);
console.log(JSON.stringify({answer: text(answer), lines: lines.map(text), marked: lines.map(marks)}));
process.exit();
""".replace("ROW", json.dumps(row))
    before = BROWSER.replace("createElement: made", "createElement: tag => Object.assign(made(), {tag})")
    shown = run_script(before, then)
    assert shown["answer"] == "the first (score -0.50)"
    assert [line.split() for line in shown["lines"]] == [
        ["1·", "first", "·", "·"],
        ["2the", "first", "[SEP]", "·"],
        ["4the", "first", "[SEP]", "[SEP]"],
    ]
    assert shown["marked"] == [["first"], ["the", "[SEP]"], ["[SEP]"]]


def test_words_are_coloured_by_their_shares_in_each_text():
    row = {
        "label": "bad", "value": 2.0, "baseline": -0.5, "inputs": [0, 0, 0, 0, 0, 1, 1],
        "starts": [0, 0, 4, 8, 11, 0, 0], "ends": [0, 4, 7, 11, 12, 3, 0],
        "shares": [0.0, 0.25, 0.75, -0.5, 0.125, 0.5, 0.0],
    }  # fmt: skip
    then = """
const show = ({children}) => children.filter(part => part !== "").map(part => typeof part === "string" ? part :
  [part.children[0], part.title, part.style.background]);
console.log(JSON.stringify([coloured(ROW, "😀unfair end.", 0), coloured(ROW, "bad", 1)].map(show)));
process.exit();
""".replace("ROW", json.dumps(row))
    before = BROWSER.replace("createElement: made", "createElement: tag => Object.assign(made(), {tag, style: {}})")
    # The emoji is one character; pieces of a word are one mark with their sum, and a full stop is one of its own.
    assert run_script(before, then) == [
        [
            ["😀unfair", "1.000", "rgba(0, 110, 255, 0.7)"],
            " ",
            ["end", "-0.500", "rgba(255, 110, 0, 0.35)"],
            [".", "0.125", "rgba(0, 110, 255, 0.0875)"],
        ],
        [["bad", "0.500", "rgba(0, 110, 255, 0.7)"]],
    ]
