"""Judges: a generative one and a scalar reward model. Each turns one judge input into one
judgement."""
