"""`autoj models`: the models known by name."""

from __future__ import annotations

from autoj_reward.cli.flags import command, flag


@command(flag("--prepare", action="store_true", help="build the built-in models now"))
def models(prepare: bool) -> int:
    """List the models known by name; with prepare, build the built-in ones first."""
    from autoj_reward.models import BUILT_IN, known_models

    if prepare:
        from autoj_reward.models.built_in import build

        for name in BUILT_IN:
            print(f"{name}: {build(name)}")
        return 0
    models = known_models().values()
    wide, wider = (
        max(map(len, column)) for column in zip(*((m.name, m.format) for m in models), strict=True)
    )
    for known in models:
        print(f"{known.name:{wide}}  {known.format:{wider}} {known.wrapper:8} {known.about}")
    return 0
