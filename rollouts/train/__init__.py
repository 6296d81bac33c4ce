"""A policy that learns from a judge, by TRL's trainers."""
