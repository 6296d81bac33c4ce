"""The paper's own evaluations: critiques against reference critiques, and a ranking of systems."""
