"""Names the packages: `tools/` and `configs/` are parts of the package, at the top of a checkout because users read
them first.
"""

from setuptools import find_packages, setup

ELSEWHERE = {"official_bert.tools": "tools", "official_bert.configs": "configs"}

setup(packages=[*find_packages(include=["official_bert", "official_bert.*"]), *ELSEWHERE], package_dir=ELSEWHERE)
