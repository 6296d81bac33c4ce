"""Rewards for trainers: `RewardModel`, and one adapter module for each framework."""
