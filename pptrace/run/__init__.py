"""From a configuration to a run and its report."""
