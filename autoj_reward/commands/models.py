"""`autoj models`: the models known by name."""

from __future__ import annotations

from autoj_reward.commands.flags import command, flag


@command(flag("--prepare", action="store_true", help="build the built-in models now"))
def models(prepare: bool) -> int:
    """List the models known by name; with prepare, build the built-in ones first."""
    from autoj_reward.models import BUILT_IN, known_models

    if prepare:
        from autoj_reward.models.built_in import build

        for name in BUILT_IN:
            print(f"{name}: {build(name)}")
        return 0
    width = max(map(len, known_models()))
    for known in known_models().values():
        print(f"{known.name:{width}}  {known.format:12} {known.wrapper:8} {known.about}")
    return 0
