"""The page's script in Node, without a browser: what it asks the server, and what it shows."""

import json
import re
import subprocess

from needed_tools import need

from official_bert.server import page

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


def test_a_newer_version_is_shown_with_its_own_labels():
    need("node")
    script = re.search("<script>(.*?)</script>", page.read(), re.DOTALL)[1].replace('"use strict";', "")
    begin = "document.getElementById('model').value = 'm';"
    finished = subprocess.run(["node", "-e", BROWSER + begin + script + THEN], capture_output=True, text=True,
                              check=False)
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert found["shown"][:4] == ["yes", "0.750", "no", "0.250"]
    assert found["path"] == "/v1/models/m/versions/2:predict"
