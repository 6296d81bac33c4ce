"""Meta-evaluation: how good a judge is, by the paper's tasks and by newer benchmarks."""
