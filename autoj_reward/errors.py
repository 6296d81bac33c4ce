"""Exceptions, and the extra to install for each missing module.

AutojError
├── ConfigError          a config file or value is wrong
├── FormatError          a judge format's files are wrong
├── InputError           input rows are wrong and the caller asked for strictness
│   └── BadMessages      messages are no valid conversation
├── OutputError          results cannot be written
├── ModelError           a model cannot be found, built or loaded
├── JournalError         the journal cannot be read or written
├── SpendingLimit        a run has spent as much as its config allows
├── BudgetExceeded       too many judgements of a training run failed
├── AuditAlarm           the audit of a reward is out of bounds, and was told to stop the run
├── NoReward             one judgement failed, and its caller omits failed items
└── EngineError          the engine did not answer
    ├── InputRejected    this input can never be judged: do not retry
    └── EngineUnavailable  no answer before the deadline, or the engine died: retry elsewhere
        └── ReplicaLost  the replica died while it held the request

Messages say what is wrong, the value, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

EXTRAS = {
    "serve": ("fastapi", "prometheus_client", "starlette", "uvicorn"),
    "train": (
        "accelerate",
        "datasets",
        "datasketch",
        "gguf",
        "huggingface_hub",
        "numpy",
        "peft",
        "pyarrow",
        "safetensors",
        "scipy",
        "sklearn",
        "tensorboard",
        "tokenizers",
        "transformers",
        "trl",
    ),
    "gpu": ("psutil", "ray", "torch", "vllm"),
    "mlflow": ("mlflow",),
    "otel": ("opentelemetry",),
    "prices": ("genai_prices",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Modules that the client does not need, by the extra that installs them."""


class AutojError(Exception):
    """Base class of all exceptions that this package raises on purpose."""


class ConfigError(AutojError):
    """A configuration file or value is wrong."""


class FormatError(AutojError):
    """A judge format's files are missing, malformed or contradict each other."""


class InputError(AutojError):
    """Input rows are wrong and the caller asked for strictness, or no usable row is left."""


class BadMessages(InputError):
    """Error for messages that are no valid conversation."""

    def __init__(self, where: str, reason: str) -> None:
        """Record the place in the messages, such as `[2].content`, and what is wrong there."""
        super().__init__(f"messages{where}: {reason}" if where else reason)
        self.where, self.reason = where, reason


class OutputError(AutojError):
    """Results cannot be written."""


class ModelError(AutojError):
    """A model cannot be found, built or loaded."""


class JournalError(AutojError):
    """The journal cannot be opened, read or written."""


class EngineError(AutojError):
    """The engine did not answer a request."""


class InputRejected(EngineError):
    """This input can never be judged (too long, a control token left in it): do not retry."""


class EngineUnavailable(EngineError):
    """No answer before the deadline, or the engine died: retry elsewhere or later."""

    retry_after_s: float = 0.0
    """Seconds that the refusing server asks clients to wait before a retry."""


class ReplicaLost(EngineUnavailable):
    """The replica died while it held the request, which may have been the cause."""

    replica: str = ""
    """Id of the replica, or empty if unknown.

    With it, two failures of the same dead replica count as one lost replica.
    """


class SpendingLimit(AutojError):
    """A run has spent as much on judges as its config allows. The same command goes on."""


class BudgetExceeded(AutojError):
    """Too many judgements of a training run failed; training stops rather than learn from noise."""


class AuditAlarm(AutojError):
    """The audit of a training's reward is out of bounds, and its config says to stop the run."""


class NoReward(AutojError):
    """One judgement failed; raised for callers that omit failed items and accept no None."""


def did_you_mean(name: str, known_names: Iterable[str], start: str = "") -> str:
    """Return `: did you mean ...?` with the known name closest to a wrong one, or "".

    start: prefix of the suggested name.
    """
    from difflib import get_close_matches

    nearest = get_close_matches(name, list(known_names), 1)
    return f": did you mean `{start}{nearest[0]}`?" if nearest else ""


@contextmanager
def from_extras() -> Iterator[None]:
    """Turn a missing module within this context into a ConfigError that names the extra to install.

    If no extra installs the module, ModuleNotFoundError is raised as it is.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = next((name for name, modules in EXTRAS.items() if module in modules), None)
        if extra is None:
            raise
        alternative = (
            " (without a GPU as the README says), or ask a running service"
            if extra == "gpu"
            else ""
        )
        raise ConfigError(
            f"this needs {module}, which the client does without: pip install "
            f"'autoj-reward[{extra}]'{alternative}"
        ) from error
