"""The synergistic tensor and pipeline parallelism schedule."""
