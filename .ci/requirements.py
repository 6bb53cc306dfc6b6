"""Print what pyproject.toml asks for, build and test tools included, one requirement a line.

So that the package itself can be installed without build isolation, over and over, in seconds.
"""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())
wanted = list(project["build-system"]["requires"]) + list(project["project"]["dependencies"])
for extra in project["project"]["optional-dependencies"].values():
    wanted += extra
print("\n".join(sorted(set(wanted))))
