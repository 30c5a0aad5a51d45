"""What a monitor says of itself, and the trace that it opens after the block."""

import pytest
import torch

from dispatchmon import DispatchMonitor, MonitorStateError


class Net(torch.nn.Linear):
    """A model with a name."""


def test_its_repr_says_where_it_stands(tmp_path):
    """Before, in and after the block, and of a model that is gone."""
    path = tmp_path / "t.arrow"
    model = Net(2, 2)
    monitor = DispatchMonitor(model, path, quiet=True)
    assert repr(monitor) == "<DispatchMonitor of Net: not entered yet>"
    with monitor:
        monitor.step()
        assert repr(monitor) == f"<DispatchMonitor of Net: writing {path}, step 1>"
    assert repr(monitor) == f"<DispatchMonitor of Net: wrote {path}>"
    del model
    assert repr(monitor) == f"<DispatchMonitor of a model that is gone: wrote {path}>"
    assert repr(DispatchMonitor()) == "<DispatchMonitor: not entered yet>"


def test_its_repr_says_what_stopped_it(tmp_path):
    """A trace that cannot be written is not said to be whole."""
    monitor = DispatchMonitor(None, tmp_path / "t.arrow", quiet=True)

    def run():
        with monitor:
            torch.ones(1).add(1)
            (tmp_path / "t.arrow").unlink()

    with pytest.warns(RuntimeWarning, match="stopped recording"):
        run()
    assert repr(monitor) == f"<DispatchMonitor: stopped by FileNotFoundError, wrote {tmp_path / 't.arrow'}>"


def test_the_trace_is_opened_after_the_block(tmp_path):
    """It is the file that was written; without a block, or within it, there is none."""
    monitor = DispatchMonitor(None, tmp_path / "t.arrow", quiet=True)
    with pytest.raises(MonitorStateError, match="there is no trace yet: enter the monitor"):
        _ = monitor.trace
    with monitor:
        torch.ones(1).add(1)
        with pytest.raises(MonitorStateError, match=r"t\.arrow is still being written: leave the monitor's with block"):
            _ = monitor.trace
    assert monitor.trace.files[0].path == tmp_path / "t.arrow"
    assert monitor.trace.complete
