"""`CFG…`: codes about submissions, one file per subject beside this one.

| codes | subject |
|---|---|
| CFG0xx | files: YAML itself, JSON, what a config names |
| CFG1xx | the accelerate file: keys, launcher, topology |
| CFG2xx, CFG3xx | DeepSpeed and ZeRO; FSDP |
| CFG4xx | precision |
| CFG5xx | batch, schedule, evaluation, saving |
| CFG6xx | keys of the Axolotl config; adapters |
| CFG7xx, CFG8xx | data; surroundings: disks, accounts, GPUs |
| CFG9xx | Axolotl's own verdict |
"""

from __future__ import annotations

from coordinator.core.catalogue import cfg_axolotl, cfg_files, cfg_launch, cfg_sharding, cfg_surroundings
from coordinator.core.catalogue.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    *cfg_files.ENTRIES,
    *cfg_launch.ENTRIES,
    *cfg_sharding.ENTRIES,
    *cfg_axolotl.ENTRIES,
    *cfg_surroundings.ENTRIES,
)
