"""The `rankcall` command. `main` is its entry point (pyproject); the verbs are in `jobs.py`, `replicas.py`,
`offline.py` and `service.py`, and import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import os
import sys

from coordinator.core import interrupt


def main() -> None:
    """Runs the command line. A user sees words and an exit code, never a traceback (but with RANKCALL_DEBUG=1)."""
    interrupt.leave_at_once()
    code = run()
    interrupt.leave_at_once()  # where a verb had asked for the exception, the interpreter's end would show it
    sys.exit(code)


def run() -> int:
    """The exit code of the command in `sys.argv`."""
    from coordinator.cli.exits import Exit, Stop

    try:
        from coordinator.cli.verbs import app

        app()
    except Stop as stop:
        _say(stop)
        return stop.code
    except SystemExit as ended:  # typer's own: usage errors (2), --help (0), Ctrl-C (130)
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `rankcall jobs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.GOOD
    except Exception as error:
        if os.environ.get("RANKCALL_DEBUG"):
            raise
        from coordinator.cli.console import say

        say(f"rankcall failed by a fault of its own: {type(error).__name__}: {error}", "bold red")
        say("RANKCALL_DEBUG=1 shows where; please report it.")
        return Exit.FAILED
    return Exit.GOOD


def _say(stop: object) -> None:
    from coordinator.cli.console import say, say_finding
    from coordinator.cli.exits import Stop

    assert isinstance(stop, Stop)
    for finding in stop.findings:
        say_finding(finding)
    if stop.message:
        say(stop.message, "bold red")
    if stop.hint:
        say(stop.hint)
