"""Training: loop, checkpoints, distributed training, writers, optimizers and learning-rate schedules."""
