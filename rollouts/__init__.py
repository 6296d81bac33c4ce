"""Runnable jobs that use the judge: best-of-N selection and policy training."""
