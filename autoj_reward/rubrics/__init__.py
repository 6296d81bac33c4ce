"""Tools for rubrics: audits before a rubric is used as a reward."""
