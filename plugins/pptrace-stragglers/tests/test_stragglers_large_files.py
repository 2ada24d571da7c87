"""A small parquet of very many equal rows is refused before they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from straggler_parquet import operations, write_job

from pptrace.errors import TraceError
from pptrace_stragglers.measurement import read_job_table

if TYPE_CHECKING:
    from pathlib import Path


def test_rows_that_take_next_to_nothing_are_refused(tmp_path: Path) -> None:
    path = write_job(tmp_path / "job.parquet", operations(lambda *_: 0.01))
    table = parquet.read_table(path)
    parquet.write_table(table.take(pa.array(np.zeros(1_000_000, dtype=np.int64))), path)

    with pytest.raises(TraceError, match="unpacks to more than 100 times"):
        read_job_table(path)
