"""Training of scalar reward models: recipe -> pairs -> TRL's RewardTrainer -> validation."""
