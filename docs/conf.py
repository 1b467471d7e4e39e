"""The site: Sphinx over the pages, the notebooks and the docstrings of this repository (`make docs`).

Sphinx, because it is kept by many and reads docstrings itself; MkDocs has had no release for long, and its successors
are young.
"""

import pathlib
import shutil
import tomllib

ROOT = pathlib.Path(__file__).parent.parent

project = "official_bert"
author = "The authors of official_bert"
release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header"]  # pages that tools write begin below the first level of headings
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
html_theme = "furo"
html_title = f"official_bert {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False

# Pages are plain Markdown, which GitHub shows too.
myst_heading_anchors = 4
nb_execution_mode = "off"  # their outputs are stored: tools/run_notebooks.py
nb_ipywidgets_js = {}  # would be fetched from another host
myst_enable_extensions = ["html_image"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False  # those of Keras are not ours
autodoc_default_options = {"exclude-members": "from_config, get_config, build"}
autosummary_generate = True

WRITTEN_BY_A_TOOL = "ablations/inside/README"  # tools/look_inside.py: HTML, which has no title that Sphinx sees


def give_title(_, page: str, source: list[str]) -> None:
    """Gives the page of pictures a title."""
    if page == WRITTEN_BY_A_TOOL:
        source[0] = f"# Inside a model\n\n{source[0]}"


def copy_pictures(app, error) -> None:
    """Copies the pictures that its HTML names."""
    if not error:
        target = pathlib.Path(app.outdir, WRITTEN_BY_A_TOOL).parent
        for picture in (ROOT / "docs" / WRITTEN_BY_A_TOOL).parent.glob("*.svg"):
            shutil.copy(picture, target)


def setup(app) -> None:
    """Registers both with Sphinx."""
    app.connect("source-read", give_title)
    app.connect("build-finished", copy_pictures)
