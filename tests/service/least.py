"""The least that the checks accept."""

from __future__ import annotations

CONFIG = """\
base_model: org/model
datasets:
  - path: org/data
    type: alpaca
learning_rate: 0.0002
output_dir: ./outputs
"""
