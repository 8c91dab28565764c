"""Anomaly mode is armed at once where nothing is scaled, and after skips in a row under a scaler."""

import pytest
import torch

from ampx.training.anomaly import ARM_AFTER_SKIPS, AnomalyHunt


@pytest.mark.parametrize(
    ("is_scaled", "skips", "is_armed"),
    [(False, 0, True), (True, 0, False), (True, ARM_AFTER_SKIPS - 1, False), (True, ARM_AFTER_SKIPS, True)],
)
def test_it_waits_for_a_scaler_to_come_down(is_scaled: bool, skips: int, is_armed: bool) -> None:
    """BUGS 14. Red when it is armed whatever the scaler is about to catch."""
    hunt = AnomalyHunt(is_scaled=is_scaled)
    for _ in range(2):  # a region can be entered at every attempt
        with hunt.region(skips):
            assert torch.is_anomaly_enabled() == is_armed
        assert not torch.is_anomaly_enabled()


def test_armed_it_names_the_operator() -> None:
    x = torch.zeros(1, requires_grad=True)
    with pytest.raises(RuntimeError, match="SqrtBackward"), AnomalyHunt(is_scaled=False).region(0):
        (torch.sqrt(x) * 0).backward()
