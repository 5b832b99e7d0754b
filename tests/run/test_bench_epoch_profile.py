"""The profile of an epoch names where its time goes."""

from __future__ import annotations

import pytest
from run.bench import epoch_profile


def test_the_shares_of_an_epoch_sum_to_all_of_it_and_name_its_operators(capsys: pytest.CaptureFixture[str]) -> None:
    assert epoch_profile.main(["--data", "zinc", "--graphs", "4"]) == 0
    header, _, row = capsys.readouterr().out.splitlines()
    assert len(header.split("|")) == len(row.split("|"))
    share = epoch_profile.shares("pascalvoc-exphormer", 2)
    assert sum(share.values()) == pytest.approx(100)
    for name in ("matrix products", "attention", "messages", "norms", "optimizer"):
        assert share[name] > 0, name
