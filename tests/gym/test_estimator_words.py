"""What a command line says of both stages of the low-width method reaches the estimator."""

from __future__ import annotations

from graphgps_kmip.gym.estimator_settings import shared_words

WORDS = ["optim.max_epoch", "2", "gt.layers", "3", "dataset.dir", "data", "out_dir", "results"]
PLACES = ["dataset.dir", '"data"', "out_dir", '"results"']


def test_places_reach_the_estimator_and_its_training_is_its_own() -> None:
    assert shared_words(WORDS) == PLACES
    assert shared_words([*WORDS, "dataset.sample", "False"]) == [*PLACES, "dataset.sample", "false"]


def test_on_samples_the_estimator_trains_no_longer_than_the_sparse_network() -> None:
    assert shared_words([*WORDS, "dataset.sample", "True"]) == [
        *("optim.max_epoch", "2"),
        *PLACES,
        "dataset.sample",
        "true",
    ]
