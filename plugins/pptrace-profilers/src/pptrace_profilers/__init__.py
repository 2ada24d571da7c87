"""Importers of measured traces for pptrace.

The packages, each of which imports only from lines below its own::

    plugin
    importers annotate   a format's files become a measurement
    formats              files become recordings
    pytorch assembly
    rules inference
    events recording
"""
