// The replicas of an attempt: its members as it knows them, with what the roster sees of them now.

import { TERMINAL } from "../shared/states.js";

/** Rows for `replicaRows`: members in rank order; before an attempt, all replicas. */
export function members(job, attempt, replicas) {
  if (!attempt) return TERMINAL.has(job.state) ? [] : replicas;
  const known = new Map(replicas.map((replica) => [replica.id, replica]));
  return [...attempt.members]
    .sort((a, b) => a.rank - b.rank)
    .map((member) => {
      const replica = known.get(member.replica_id);
      return {
        ...replica,
        id: member.replica_id,
        hostname: member.hostname,
        address: member.address,
        rank: member.rank,
        role: replica?.role === "ending" ? "ending" : "member",
        alive: replica?.alive ?? member.alive,
        last_seen_s: replica?.last_seen_s ?? 0,
      };
    });
}
