"""An experiment as its user writes it: YAML, ``--set`` and flags; import the submodules, all load lazily."""
