"""Memory that is freed and filled again: `verify_values` takes that for no write behind anyone's back."""

import torch

from dispatchmon import DispatchMonitor

PLAIN = torch.UntypedStorage.resize_


def test_memory_that_is_freed_and_filled_again(tmp_path):
    """It holds another value then; what is written through numpy without that is found all the same."""
    x, y = torch.ones(4), torch.ones(4)
    with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True, verify_values=True) as monitor:
        x.neg(), y.neg()
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(16)
        x.untyped_storage().fill_(1)
        y.numpy()[:] = 3
        x.neg(), y.abs()
    (finding,) = monitor.trace.audit().hazards
    assert finding.kind == "undeclared-write"
    assert "`aten.abs.default`" in finding.message


def test_torch_is_left_as_it_was(tmp_path):
    """With two monitors as with one; and without `verify_values` nothing is touched."""
    with DispatchMonitor(None, tmp_path / "t.arrow", quiet=True):
        assert torch.UntypedStorage.resize_ is PLAIN
    with DispatchMonitor(None, tmp_path / "a.arrow", quiet=True, verify_values=True):
        with DispatchMonitor(None, tmp_path / "b.arrow", quiet=True, verify_values=True):
            assert torch.UntypedStorage.resize_ is not PLAIN
        assert torch.ones(2).untyped_storage().resize_(4).nbytes() == 4
        assert torch.UntypedStorage.resize_ is not PLAIN
    assert torch.UntypedStorage.resize_ is PLAIN
