"""Sweeps, plans and searches of pptrace on a dask.distributed cluster."""
