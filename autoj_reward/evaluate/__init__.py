"""Meta-evaluation of judges, on the paper's tasks and on newer benchmarks."""
