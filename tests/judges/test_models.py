"""Real architectures with and without a monitor: a share of what `make test-models` runs."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: no real architectures to run")

from models import sweep
from models.architectures import architectures

# Small ones that differ: causal, masked and sequence-to-sequence attention, experts, a scan, both kinds of checkpoint,
# in-place activations and running statistics, convolutions on sound, and those whose bits a no-op mode changes under
# `inference_mode`.
SHARE = (
    "gpt2", "llama_checkpointed", "gpt2_checkpointed_reentrant", "mixtral", "mamba", "longformer", "t5", "hf_resnet",
    "wavlm", "siglip", "patchtsmixer",
)  # fmt: skip
ARCHITECTURES = {each.name: each for each in architectures(["transformers"])}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARE)
def test_nothing_changes(name):
    """Training and evaluation give the same bits, keep nothing alive, and leave a whole, attributed trace."""
    verdict = sweep.examine(ARCHITECTURES[name])
    assert verdict.failures == []
    assert verdict.unsteady == []
    assert verdict.events > 100
