"""Adds the recipes and the revision to the package; everything else is in pyproject.toml."""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent.resolve()


class BuildPackage(build_py):
    """Adds t2t/configs and t2t/REVISION; an editable installation uses those of the checkout."""

    def run(self) -> None:
        """Builds in an empty folder: setuptools ships what an older version left in build/."""
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        package = Path(self.build_lib) / "t2t"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "configs", package / "configs", ignore=ignored)
        (package / "REVISION").write_text(find_revision())


class MakeSourceArchive(sdist):
    """Adds the revision, since the archive has no .git."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Replaces REVISION by a new file: it may be a hard link to the checkout's."""
        super().make_release_tree(base_dir, files)
        path = Path(base_dir) / "REVISION"
        path.unlink(missing_ok=True)
        path.write_text(find_revision())


def find_revision() -> str:
    """The commit, with "-dirty" if files differ from it; without git, the text of REVISION."""
    git = ["git", "--no-optional-locks", "-C", str(ROOT)]
    describe = ["describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        top, revision = (
            subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout
            for command in (["rev-parse", "--show-toplevel"], describe)
        )
        if Path(top.rstrip("\n")).resolve() == ROOT:
            return revision
    except (OSError, subprocess.CalledProcessError):
        pass
    return (ROOT / "REVISION").read_text()


setup(cmdclass={"build_py": BuildPackage, "sdist": MakeSourceArchive})
