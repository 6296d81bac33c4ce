"""Who answers: vLLM here, any OpenAI-compatible endpoint, or a script. One seam: `base.Engine`."""
