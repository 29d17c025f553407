"""A process that goes when the one that started it goes, however that one ends (Linux).

`tied(argv)` is what to start instead of `argv`: a few lines of Python that ask the kernel for SIGTERM at the
parent's death (prctl PR_SET_PDEATHSIG, which outlives exec) and then turn into `argv`. Used by
`rankcall up` for its services and by the demo for its replicas; never for training, which outlives everybody.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

# What an agent is sent that is to go and leave its training alone; SIGTERM asks it to end that too.
LEAVE = signal.SIGUSR1

_TIE = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,15,0,0,0);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);os.execv(sys.argv[2],sys.argv[2:])"
)


def tied(argv: Sequence[str]) -> list[str]:
    """`argv[0]` is the path of a program. The tie is to the thread that starts it: start it from the main one."""
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), *argv]
