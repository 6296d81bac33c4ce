"""Inference engines: vLLM, transformers, OpenAI-compatible endpoints and scripts, behind
`base.Engine` and `base.Scorer`."""
