"""Modules and parameters under DDP and FSDP2."""

import json

import pytest
import torch

import distributed_values
from dispatchmon import open_trace
from recorded import rows_of


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_each_rank_records_its_own_shard(kind, tmp_path):
    """The bits are the same; gradients (reduced, before and after clipping), values, updates and states are those of the shard."""
    torch.multiprocessing.spawn(distributed_values.compare, (kind, str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        assert (tmp_path / f"differences.rank{rank}").read_text() == ""
        path = tmp_path / f"trace.rank{rank}.arrow"
        assert open_trace(path).files[0].complete
        assert not open_trace(path).files[0].skipped
        rows = [r for r in rows_of(path) if r["step"] == 2]
        assert {r["role"] for r in rows if r["kind"] == "module"} == {"input", "output", "grad_input", "grad_output"}
        truth = json.loads((tmp_path / f"truth.rank{rank}").read_text())
        for what, expected in truth.items():
            found = {
                r["name"].removesuffix(".grad").removesuffix(".exp_avg"): r["norm"] or 0.0
                for r in rows
                if r["kind"] == "parameter" and r["arg"] == what
            }
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-9), what
