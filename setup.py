"""Names the packages: `tools/` and `configs/` are parts of the package, at the top of a checkout because users read
them first.
"""

from setuptools import find_packages, setup

ELSEWHERE = {"official_bert.tools": "tools", "official_bert.configs": "configs"}
BESIDE = [f"official_bert.{name}" for name in find_packages(include=["tools", "tools.*", "configs"])]

setup(packages=[*find_packages(include=["official_bert", "official_bert.*"]), *BESIDE], package_dir=ELSEWHERE)
