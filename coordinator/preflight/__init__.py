"""What the handshake probes, and what its results mean. Pure: the lifecycle calls it, agents do the probing."""
