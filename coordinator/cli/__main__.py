"""`python -m coordinator.cli`: the `rankcall` command of this interpreter, wherever its script lies."""

from __future__ import annotations

from coordinator.cli import main

main()
