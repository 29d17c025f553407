"""Rules over a submission: found before a GPU second is spent. `check` is the one entry; see `check.py`."""

from coordinator.checks.check import check, examine, verdict
from coordinator.checks.files import BundleFiles, Files, FolderFiles
from coordinator.checks.subject import Purpose
from coordinator.checks.syntax import decode

__all__ = ["BundleFiles", "Files", "FolderFiles", "Purpose", "check", "decode", "examine", "verdict"]
