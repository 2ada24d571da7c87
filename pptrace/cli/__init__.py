"""The commands, one module each."""

import gc

# Before the import of click: with the default of 700 new objects, collections take 5 % of ``pptrace --help``.
gc.set_threshold(200_000, *gc.get_threshold()[1:])
