"""The tcp mesh of many simulated replicas on one machine: from the plan's receipt to the verdict.

    .venv/bin/python tests/bench/bench_mesh.py [--replicas 64] [--processes 8] [--rounds 3]

Every replica has an echo server and probes all others, throughput on sampled links only, as the coordinator
plans it. The replicas are spread over a few processes; each starts to probe when all servers listen.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import os
import pickle
import statistics
import subprocess
import sys
import time

from agent.probes import echo, tcp
from coordinator.core.protocol import Member, TcpResult, TcpTask
from coordinator.preflight.plan import sampled, tcp_targets
from coordinator.preflight.verdict import judge_tcp


async def host(numbers: list[int]) -> None:
    """A process with some of the replicas: tells its ports, reads the plan, probes, tells the results."""
    servers = {n: await echo.serve(f"r-{n:010x}", "127.0.0.1", 0) for n in numbers}
    sys.stdout.buffer.write(pickle.dumps({n: server.port for n, server in servers.items()}))
    sys.stdout.buffer.flush()
    members: list[Member] = await asyncio.to_thread(pickle.load, sys.stdin.buffer)
    targets, payload = tcp_targets(members), sampled(members)
    tasks = [
        TcpTask(
            task_id="tcp",
            stage="tcp",
            deadline_s=30,
            nonce="0" * 32,
            targets=targets[members[n].replica_id],
            sampled=payload[members[n].replica_id],
        )
        for n in numbers
    ]
    results = await asyncio.gather(
        *(tcp.probe(task, members[n].replica_id) for n, task in zip(numbers, tasks, strict=True))
    )
    told = pickle.dumps({members[n].replica_id: r for n, r in zip(numbers, results, strict=True)})
    await asyncio.to_thread(tell, told)  # in a thread: others still ask our servers
    await asyncio.to_thread(sys.stdin.buffer.read)
    for server in servers.values():
        await server.aclose()


def tell(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def one_round(replicas: int, processes: int) -> tuple[float, list[str]]:
    """Seconds from the plan's receipt to the verdict, and the codes of its findings."""
    shares = [list(range(first, replicas, processes)) for first in range(processes)]
    hosts = [
        subprocess.Popen(
            [sys.executable, __file__, "--host", ",".join(map(str, share))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for share in shares
    ]
    ports: dict[int, int] = {}
    for process in hosts:
        assert process.stdout is not None
        ports |= pickle.load(process.stdout)
    members = [
        Member(replica_id=f"r-{n:010x}", rank=n, address="127.0.0.1", interface="lo", echo_port=ports[n])
        for n in range(replicas)
    ]
    began = time.perf_counter()
    results: dict[str, TcpResult] = {}
    for process in hosts:
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(members))
        process.stdin.flush()
    for process in hosts:
        assert process.stdout is not None
        results |= pickle.load(process.stdout)
    found = judge_tcp(members, results)
    elapsed = time.perf_counter() - began
    for process in hosts:
        process.communicate()
    return elapsed, [one.code for one in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--host")
    options = parser.parse_args()
    if options.host:
        asyncio.run(host([int(n) for n in options.host.split(",")]))
        return
    times = []
    for _ in range(options.rounds):
        elapsed, codes = one_round(options.replicas, options.processes)
        times.append(elapsed)
        print(f"{elapsed:5.2f} s, findings: {dict(collections.Counter(codes)) or 'none'}")
    links = options.replicas * (options.replicas - 1)
    print(
        f"{options.replicas} replicas, {links} directed links: median {statistics.median(times):.2f} s ({os.cpu_count()} cores)"
    )


if __name__ == "__main__":
    main()
