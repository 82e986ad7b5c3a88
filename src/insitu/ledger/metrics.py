"""`metrics.parquet`: the table of steps for DuckDB, pandas and plots."""

import io
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from insitu.kit.atomic import write_atomic
from insitu.ledger.ledger import Ledger
from insitu.ledger.summary import StepSummary, step_table

_WHOLE = frozenset({"step", "version", "episodes", "groups", "sampled_tokens", "lag_max"})
_NESTED = {"signals": "signal_", "metrics": "train_"}


def write_metrics(ledger: Ledger, path: Path) -> int:
    """Write one row per done step; the old file is whole until the new one is.

    Columns: those of `StepSummary`, then `signal_NAME` and `train_NAME`, null where a step lacks
    the value.

    Returns:
        Number of rows.
    """
    table = step_table(ledger)
    columns = {
        f.name: pa.array(
            [getattr(row, f.name) for row in table],
            pa.int64() if f.name in _WHOLE else pa.float64(),
        )
        for f in fields(StepSummary)
        if f.name not in _NESTED
    }
    for name, prefix in _NESTED.items():
        dicts = [getattr(row, name) for row in table]
        for key in sorted({key for d in dicts for key in d}):
            columns[prefix + key] = pa.array([d.get(key) for d in dicts], pa.float64())
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    write_atomic(path, buffer.getvalue())
    return len(table)
