"""The page in a real headless browser: it shows what the API answers. Needs Debian's chromium and chromium-driver."""

import json
import os
import shutil
import subprocess

import made_serving
import pytest
from needed_tools import need

from official_bert.config import Config, TokenizerConfig
from official_bert.models.pretrainer import Pretrainer
from official_bert.server.access import AccessRules
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig
from official_bert.serving import export
from official_bert.tasks.pretraining.served import ServedFillMask
from official_bert.tasks.squad.served import ServedSpans
from official_bert.tasks.tagging.served import ServedTagger
from official_bert.tasks.texts.served import ServedClassifier
from official_bert.tools.client import RestClient

pytestmark = pytest.mark.slow
PASSAGE = "🏔 The surveyor met Señora Núñez near Brno while it rained."  # its first letter is two UTF-16 units


@pytest.fixture(scope="module")
def models(graph_tokenizer, small_config, classifier, token_tagger, span_model, golden, tmp_path_factory):
    """A server of one model of each kind that the page knows."""
    root = tmp_path_factory.mktemp("page")
    labels = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
    served = {
        "blank": ServedFillMask(Pretrainer.make(small_config), graph_tokenizer, 32, top_k=3),
        "classes": ServedClassifier(classifier(3), graph_tokenizer, 32, labels=("no", "maybe", "yes"), pairs=True),
        "question": ServedSpans(span_model, graph_tokenizer, 32, doc_stride=8, max_query_length=8),
        "entities": ServedTagger(token_tagger, graph_tokenizer, 32, labels=labels, doc_stride=8),
    }
    config = Config(model=small_config, tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")))
    for name, model in served.items():
        export.export(model, config, export.ExportOptions(output=str(root / name), batch_sizes=()))
    options = ServerOptions(
        models=[ServedModelConfig(name=name, base_path=str(root / name / "text")) for name in served],
        rest_port=0,
        grpc_port=None,
        poll_seconds=0.1,
    )
    with made_serving.embedded(options) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium. Its sandbox cannot be had by root."""
    need("chromium", "chromedriver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=900,760",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def wait(browser, found):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60).until(lambda _: found())


def ask(browser, url, model, **fields):
    """Fills the page in, presses the button, and gives the element of the result."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    browser.get(url)
    wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#model option"))
    Select(browser.find_element(By.ID, "model")).select_by_value(model)
    for name, value in fields.items():
        (box,) = wait(browser, lambda name=name: browser.find_elements(By.ID, f"input-{name}"))
        # Typed keys cannot hold letters beyond 16 bits.
        browser.execute_script("arguments[0].value = arguments[1]", box, value)
    wait(browser, lambda: browser.find_element(By.ID, "ask").is_enabled())
    browser.find_element(By.ID, "ask").click()
    result = browser.find_element(By.ID, "result")
    wait(browser, lambda: result.text.strip())
    return result


def test_blanks_are_shown_with_their_words(models, browser):
    from selenium.webdriver.common.by import By

    text = "The [MASK] met the [MASK]."
    tables = ask(browser, models.url, "blank", text=text).find_elements(By.TAG_NAME, "table")
    with RestClient(models.url, "blank") as client:
        (answer,) = client.predict([text])
    shown = [
        [row.find_elements(By.TAG_NAME, "td") for row in table.find_elements(By.TAG_NAME, "tr")] for table in tables
    ]
    assert [[row[0].text for row in table] for table in shown] == answer["tokens"] and len(shown) == 2
    assert [[row[2].text for row in table] for table in shown] == [
        [f"{share:.3f}" for share in shares] for shares in answer["probabilities"]
    ]


def test_the_best_label_of_a_pair_is_named(models, browser):
    result = ask(browser, models.url, "classes", text="it rained", text_pair="Señora")
    with RestClient(models.url, "classes") as client:
        (answer,) = client.predict([{"text": "it rained", "text_pair": "Señora"}])
    assert f"{answer['label']}" in result.text and f"{max(answer['probabilities']):.3f}" in result.text


def test_all_labels_are_named_each_with_its_bar(models, browser):
    from selenium.webdriver.common.by import By

    result = ask(browser, models.url, "classes", text="it rained", text_pair="Señora")
    with RestClient(models.url, "classes") as client:
        (answer,) = client.predict([{"text": "it rained", "text_pair": "Señora"}])
    rows = [row.find_elements(By.TAG_NAME, "td") for row in result.find_elements(By.TAG_NAME, "tr")]
    assert [row[0].text for row in rows] == ["no", "maybe", "yes"]
    assert [row[2].text for row in rows] == [f"{share:.3f}" for share in answer["probabilities"]]
    assert [float(row[1].find_element(By.TAG_NAME, "meter").get_attribute("value")) for row in rows] == pytest.approx(
        answer["probabilities"], abs=1e-6
    )


def test_the_page_asks_for_a_token_where_one_is_needed(models, browser):
    from selenium.webdriver.common.by import By

    token = "a-token-of-some-length"
    base = models.server.options.models[0]
    rules = AccessRules.for_server("127.0.0.1", tokens=[token])
    with made_serving.embedded(
        ServerOptions(models=[base], rest_port=0, grpc_port=None, poll_seconds=0.1, access=rules)
    ) as guarded:
        browser.get(guarded.url)
        box = browser.find_element(By.ID, "token")
        wait(browser, box.is_displayed)
        assert "Whoever runs it has one for you" in browser.find_element(By.ID, "locked").text
        box.send_keys("not-the-token-of-this-server\t")
        error = wait(browser, lambda: browser.find_elements(By.CLASS_NAME, "error"))[0]
        assert error.text == "The server does not know this token."
        box.clear()
        box.send_keys(token + "\t")
        wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#model option"))
        assert browser.find_element(By.CSS_SELECTOR, "#model option").text == base.name


def test_the_request_as_curl_gets_the_same_answer_in_a_shell(models, browser):
    from selenium.webdriver.common.by import By

    ask(browser, models.url, "blank", text='The surveyor\'s [MASK] "met" $HOME; `x` \\ Núñez')
    browser.find_element(By.ID, "curl").click()
    line = wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#result pre"))[0].text
    assert wait(browser, lambda: browser.find_element(By.CSS_SELECTOR, "#result .note").text).startswith(
        ("Copied", "Selected")
    )
    need("curl")
    done = subprocess.run(
        ["bash", "-c", line.replace("curl ", "curl --silent ", 1)], capture_output=True, text=True, check=True
    )
    with RestClient(models.url, "blank") as client:
        (answer,) = client.predict(['The surveyor\'s [MASK] "met" $HOME; `x` \\ Núñez'])
    (row,) = json.loads(done.stdout)["predictions"]
    assert row["tokens"][0] == answer["tokens"][0] and row["probabilities"][0] == pytest.approx(
        answer["probabilities"][0], abs=1e-5
    )


CLIPPED = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")].filter(each => each.getBoundingClientRect().right > wide + 1 || (
  each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflowX === "visible" && each.clientWidth))
  .map(each => each.outerHTML.slice(0, 80));
"""


@pytest.mark.parametrize("width", [1200, 420])
@pytest.mark.parametrize("model", ["blank", "classes", "question", "entities"])
def test_nothing_is_cut_off_on_a_desk_or_a_telephone(models, browser, model, width):
    from selenium.webdriver.common.by import By

    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        ask(browser, models.url, model)  # its example
        assert not browser.execute_script(CLIPPED)
        browser.find_element(By.ID, "curl").click()
        wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#result pre"))
        assert not browser.execute_script(CLIPPED)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_an_example_is_answered_on_control_and_enter(models, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    browser.get(models.url)
    wait(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#model option"))
    Select(browser.find_element(By.ID, "model")).select_by_value("question")
    (question,) = wait(browser, lambda: browser.find_elements(By.ID, "input-question"))
    assert question.get_attribute("value") == "Where was Ada Lovelace born?"
    assert "task pretraining · English" in browser.find_element(By.ID, "about").text
    wait(browser, lambda: browser.find_element(By.ID, "ask").is_enabled())
    for name in ("context", "question"):
        browser.execute_script("document.getElementById('result').replaceChildren()")
        browser.find_element(By.ID, f"input-{name}").send_keys(Keys.CONTROL, Keys.ENTER)
        wait(browser, lambda: browser.find_element(By.ID, "result").text.strip())


def test_an_answer_is_marked_in_its_passage(models, browser):
    from selenium.webdriver.common.by import By

    result = ask(browser, models.url, "question", question="Who met her?", context=PASSAGE)
    with RestClient(models.url, "question") as client:
        (answer,) = client.predict([{"question": "Who met her?", "context": PASSAGE}])
    assert answer["answer"] and result.find_element(By.TAG_NAME, "strong").text == answer["answer"]
    assert [mark.text for mark in result.find_elements(By.TAG_NAME, "mark")] == [answer["answer"]]
    assert result.find_element(By.CLASS_NAME, "passage").text == PASSAGE


def test_entities_are_marked_with_their_types(models, browser):
    from selenium.webdriver.common.by import By

    result = ask(browser, models.url, "entities", text=PASSAGE)
    with RestClient(models.url, "entities") as client:
        (answer,) = client.predict([PASSAGE])
    wanted = [f"{entity}{kind}" for entity, kind in zip(answer["entities"], answer["types"]) if kind]
    assert len(wanted) > 1 and [mark.text.replace(" ", "") for mark in result.find_elements(By.TAG_NAME, "mark")] == [
        text.replace(" ", "") for text in wanted
    ]


def test_what_the_server_refuses_is_told(models, browser):
    from selenium.webdriver.common.by import By

    result = ask(browser, models.url, "entities", text="x" * 300_000)
    assert "262144" in result.find_element(By.CLASS_NAME, "error").text.replace(",", "")
