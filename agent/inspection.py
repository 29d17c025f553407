"""`python -m agent.inspection`: this container's facts as one line of JSON, for `rankcall doctor`.

The same facts an agent would report, learned the same way; nothing is registered and nothing is started.
"""

from __future__ import annotations

import os
import sys

from agent.facts import gather
from agent.settings import AgentSettings, SettingsError


def main() -> int:
    try:
        settings = AgentSettings.from_environment()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    print(gather(settings.state_dir, settings.python, os.environ).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
