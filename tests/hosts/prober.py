"""A replica that only probes: `python prober.py REPLICA_ID`, for tests that play the coordinator themselves.

Says its echo port on the first line of stdout, then answers each task (a JSON line on stdin) with the
task's id and its result. Ends when stdin does.
"""

from __future__ import annotations

import asyncio
import sys

from pydantic import TypeAdapter

from agent.probes import echo, tcp
from agent.probes.warm import WarmProbe
from coordinator.core.protocol import CollectiveTask, Task, TcpTask

_TASK: TypeAdapter[Task] = TypeAdapter(Task)


async def main(replica_id: str) -> None:
    server = await echo.serve(replica_id)
    warm = WarmProbe()
    print(server.port, flush=True)
    reader = asyncio.StreamReader(limit=1 << 20)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        task = _TASK.validate_json(line)
        if isinstance(task, TcpTask):
            result = await tcp.probe(task, replica_id)
            print(task.task_id, result.model_dump_json(), flush=True)
        elif isinstance(task, CollectiveTask):
            if task.task_id.startswith("import"):  # let the import of torch be over before a round is timed
                await warm.torch_facts()
            print(task.task_id, (await warm.collective(task)).model_dump_json(), flush=True)
    await warm.close()
    await server.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
