"""How good a judge is, beside what it must beat: `python -m experiments.compare.judge_quality`."""
