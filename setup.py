"""Names the packages: `tools/` and `configs/` are parts of the package, at the top of a checkout because users read
them first. The wheel has a list of what it requires (a CycloneDX SBOM, PEP 770), and is the same file whenever and
wherever it is built.
"""

import json
import os
import pathlib
import re
import tomllib

from setuptools import find_packages, setup
from setuptools.command.bdist_wheel import bdist_wheel

ELSEWHERE = {"official_bert.tools": "tools", "official_bert.configs": "configs"}
BESIDE = [f"official_bert.{name}" for name in find_packages(include=["tools", "tools.*", "configs"])]
os.environ.setdefault("SOURCE_DATE_EPOCH", "315532800")  # the first second that a zip can name: 1980
READABLE, EXECUTABLE = 0o644, 0o755


class Wheel(bdist_wheel):
    """A wheel whose bytes depend on the sources alone, with an SBOM."""

    def write_wheelfile(self, wheelfile_base: str, *arguments: str) -> None:
        """Writes what a wheel says about itself: called when the folder of its metadata is there."""
        super().write_wheelfile(wheelfile_base, *arguments)
        folder = pathlib.Path(wheelfile_base) / "sboms"
        folder.mkdir(exist_ok=True)
        text = json.dumps(bill_of_materials(), indent=1) + "\n"
        (folder / "official-bert.cdx.json").write_text(text, encoding="utf-8")
        for path in (path for root in (wheelfile_base, self.bdist_dir) for path in pathlib.Path(root).rglob("*")):
            path.chmod(EXECUTABLE if path.is_dir() else READABLE)  # whatever the umask was


def bill_of_materials() -> dict:
    """Returns the package and what it requires, with ranges: an installation chooses the versions."""
    project = tomllib.loads(pathlib.Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    required = [(line, "required") for line in project["dependencies"]]
    for lines in project["optional-dependencies"].values():
        required += [(line, "optional") for line in lines]
    components = {}
    for line, scope in required:
        package = re.split(r"[^\w.-]", line)[0].lower().replace("_", "-")
        component = {"type": "library", "bom-ref": package, "name": package, "purl": f"pkg:pypi/{package}"}
        requirement = {"name": "requirement", "value": line}
        components.setdefault(package, component | {"scope": scope, "properties": [requirement]})
    about = {"type": "library", "bom-ref": name, "name": name, "version": version, "purl": f"pkg:pypi/{name}@{version}"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about | {"licenses": [{"license": {"id": project["license"]}}]}},
        "components": [components[package] for package in sorted(components)],
        "dependencies": [{"ref": name, "dependsOn": sorted(components)}],
    }


setup(
    packages=[*find_packages(include=["official_bert", "official_bert.*"]), *BESIDE],
    package_dir=ELSEWHERE,
    cmdclass={"bdist_wheel": Wheel},
)
