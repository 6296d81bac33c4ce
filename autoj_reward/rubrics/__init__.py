"""Tools for rubrics: writing them, and audits before a rubric is used as a reward."""
