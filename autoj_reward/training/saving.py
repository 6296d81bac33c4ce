"""Files of a training run: checkpoints, adapters and weights, and the record of the run.

A run resumes only from a complete checkpoint. A kill can leave a checkpoint with missing or empty
files. So every checkpoint gets a list of its files and their sizes, written after all processes
have saved their part.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from autoj_reward.io.claims import finish
from autoj_reward.io.files import write_json
from autoj_reward.io.provenance import describe_machine, installed_versions
from autoj_reward.training.common import FineTuningConfig

FILE_LIST = "whole.json"
CHECKPOINT = "checkpoint-"
"""Start of the name of a checkpoint's folder; the step follows."""


def train_on(trainer: Any, output: Path) -> None:
    """Run the Trainer to its end, resuming from the last complete checkpoint in `output`."""
    trainer.add_callback(_Checkpoints())
    with suppress(_AllSteps):
        trainer.train(resume_from_checkpoint=last_checkpoint(output))


def last_checkpoint(output: Path) -> str | None:
    """Return the newest complete checkpoint in `output`, or None. Incomplete ones are reported."""
    checkpoints = [
        path for path in output.glob(f"{CHECKPOINT}*") if path.name[len(CHECKPOINT) :].isdigit()
    ]
    for folder in sorted(
        checkpoints, key=lambda path: int(path.name[len(CHECKPOINT) :]), reverse=True
    ):
        if _is_whole(folder):
            print(f"goes on from {folder}", file=sys.stderr)
            return str(folder)
        print(f"left out: {folder}: cut off while it was written", file=sys.stderr)
        # An old list could match a later, incomplete checkpoint in the same folder.
        (folder / FILE_LIST).unlink(missing_ok=True)
    return None


class _AllSteps(Exception):
    """A resumed run has had all its steps."""


class _Checkpoints(TrainerCallback):
    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop a run whose checkpoint has all `max_steps`: transformers would take one more."""
        if 0 < args.max_steps <= state.global_step:
            raise _AllSteps

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """List the checkpoint's files, once on each node."""
        PartialState().wait_for_everyone()
        folder = Path(args.output_dir) / f"{CHECKPOINT}{state.global_step}"
        if state.is_local_process_zero:
            write_json(folder / FILE_LIST, _list_sizes(folder))


def _is_whole(folder: Path) -> bool:
    try:
        listed_sizes = json.loads((folder / FILE_LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        bool(listed_sizes)
        and isinstance(listed_sizes, dict)
        and listed_sizes.items() <= _list_sizes(folder).items()
    )


def _list_sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != FILE_LIST)
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def save_weights(
    trainer: Any, config: FineTuningConfig, name: str, merge: Callable[[Path, Path], None]
) -> None:
    """Save full weights in the folder `name` of the output.

    With LoRA the adapter goes to `adapter/`, ready to be published. `merge(adapter, target)` then
    writes the merged model.
    """
    target = config.output / name
    folder = config.output / "adapter" if config.lora else target
    trainer.save_model(str(folder))
    if not trainer.is_world_process_zero():
        return
    (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle
    if config.lora:
        for path in folder.iterdir():  # the tokenizer is the base's, the card is yet to write
            if not path.name.startswith("adapter_"):
                path.unlink()
        slim_adapter(folder, config.model)
        merge(folder, target)


def write_record(
    trainer: Any, config: FineTuningConfig, command: str, seconds: float, entries: Mapping[str, Any]
) -> dict[str, Any]:
    """Write `training.json` and return it: results, command, config, versions and machine.

    seconds: wall time since the last start. entries: on data and validation.
    """
    record = {
        "command": command,
        "config": json.loads(config.model_dump_json(exclude={"data": {"folder"}, "output": True})),
        **entries,
        "steps": trainer.state.global_step,
        "history": trainer.state.log_history,
        "seconds_since_last_start": round(seconds),
        "machine": describe_machine(),
        "versions": installed_versions(),
    }
    if trainer.is_world_process_zero():
        write_json(config.output / "training.json", record)
        finish(config.output)
    return record


def slim_adapter(folder: Path, base: str) -> None:
    """Convert a saved adapter to float16 and set its base model to the configured name."""
    from safetensors.torch import load_file, save_file

    weights = folder / "adapter_model.safetensors"
    half_weights = {name: value.half() for name, value in load_file(weights).items()}
    save_file(half_weights, weights, metadata={"format": "pt"})
    # A path into this machine's cache would mean nothing elsewhere.
    path = folder / "adapter_config.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    facts["base_model_name_or_path"] = base
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def merge_adapter(
    base: str, revision: str | None, adapter: Path, tokenizer: Any, target: Path
) -> None:
    """Merge an adapter into its causal base model and save it in float32, with the tokenizer."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(base, revision=revision, dtype=torch.float32)
    whole = PeftModel.from_pretrained(whole, str(adapter)).merge_and_unload()
    whole.save_pretrained(str(target))
    tokenizer.save_pretrained(str(target))
