"""Film one episode: ``python -m airlearning_envs.record --preset hard --policy blind --output flight.gif``.

The policy is ``blind``, ``random``, or a bundle (``III``, or its folder), which is flown with the numpy forward pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__":  # by whatever Python it was typed: go on with the project's
    from quarl.policy import interruption, project_python

    project_python.ensure()
    interruption.loading()

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from quarl.airlearning_envs.config import PRESETS, NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.flights import Decide, Observe, as_it_is, blind_policy, random_policy, shown_to
from quarl.airlearning_envs.progress import progress_bar
from quarl.airlearning_envs.render import SIDE_PX, Painter, Scene
from quarl.airlearning_envs.task import NavigationTask
from quarl.policy import interruption, pilot
from quarl.policy.errors import PolicyError
from quarl.policy.hints import as_typed

FRAMES_PER_SECOND = 20
"""Frame rate of the film, which runs in real time: one frame for each 50 ms of flight."""

_LAST_FRAME_S = 1.5  # the end stays on the screen this long


def load_decide(policy: str, config: NavigationConfig, seed: int) -> tuple[Decide, Observe]:
    """The policy of a name, observations -> actions, and what it is shown.

    Raises:
        PolicyError: there is no such bundle, or it was trained on another observation.
    """
    if policy == "blind":
        return blind_policy, as_it_is
    if policy == "random":
        return random_policy(seed), as_it_is
    from quarl.policy.locate import working_bundle
    from quarl.policy.pilot import deciding
    from quarl.policy.reference import forward_float

    bundle = working_bundle(policy)
    fields, observe = shown_to(bundle.spec.observation, config)
    bundle.spec.check_observation(fields)
    weights = bundle.weights()
    return deciding(bundle.spec, lambda observation: forward_float(bundle.spec, weights, observation)), observe


def fly_scenes(
    config: NavigationConfig, decide: Decide, episode: int, seed: int, observe: Observe = as_it_is
) -> list[Scene]:
    """The scenes of one episode, one a decision, the start and the end included."""
    core = NavigationTask(config, 1)
    observation = core.reset(np.array([episode]), seed)
    pilot.begin(decide, np.ones(1, bool))
    scenes = [Scene.of(core, 0)]
    while not core.cause[0]:
        observation = core.step(decide(observe(core, observation))).observation
        scenes.append(Scene.of(core, 0))
    return scenes


def frames(
    config: NavigationConfig,
    scenes: Sequence[Scene],
    caption: str,
    side_px: int = SIDE_PX,
    progress: Callable[[int, int], None] | None = None,
) -> list[NDArray[np.uint8]]:
    """Pictures at 20 a second of flight time; between two decisions the scene is interpolated."""
    painter = Painter(config, side_px)
    trail: list[NDArray[np.float32]] = []
    pictures: list[NDArray[np.uint8]] = []
    for number, (before, after) in enumerate(itertools.pairwise(scenes)):
        pieces = max(1, round((after.time_s - before.time_s) * FRAMES_PER_SECOND))
        for piece in range(pieces):
            scene = before.towards(after, piece / pieces)
            pictures.append(painter.draw(scene, trail, caption))
            trail.append(scene.position)
        if progress is not None:
            progress(number + 1, len(scenes))
    last = painter.draw(scenes[-1], trail, caption)
    return pictures + [last] * round(_LAST_FRAME_S * FRAMES_PER_SECOND)


def save_film(path: Path, pictures: Sequence[NDArray[np.uint8]]) -> None:
    """Write a .gif or .mp4, under a temporary name first so that no half film is left behind.

    Raises:
        SettingsError: the suffix is neither.
    """
    suffix = path.suffix.lower()
    if suffix not in (".gif", ".mp4"):
        raise SettingsError(f"--output is {str(path)!r}; allowed are names that end in .gif or .mp4.")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.stem}.part{suffix}")
    try:
        if suffix == ".gif":
            _save_gif(draft, pictures)
        else:
            import imageio.v3 as imageio

            imageio.imwrite(draft, np.stack(pictures), fps=FRAMES_PER_SECOND, codec="libx264")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _save_gif(path: Path, pictures: Sequence[NDArray[np.uint8]]) -> None:
    """One palette for all pictures and no dithering: most pixels stay as they were, which a GIF stores as nothing."""
    last = Image.fromarray(pictures[-1]).quantize(96, dither=Image.Dither.NONE)
    images = [Image.fromarray(picture).quantize(palette=last, dither=Image.Dither.NONE) for picture in pictures]
    images[0].save(
        path, save_all=True, append_images=images[1:], duration=1000 // FRAMES_PER_SECOND, loop=0, optimize=True
    )


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(prog="python -m airlearning_envs.record", description=__doc__.split("\n\n")[0])
    parser.add_argument("--preset", default="hard", help=f"one of {', '.join(PRESETS)} (default hard)")
    parser.add_argument("--policy", default="blind", help="blind, random, or a bundle's name or folder (default blind)")
    parser.add_argument("--output", type=Path, default=Path("flight.gif"), help="a .gif or .mp4 (default flight.gif)")
    parser.add_argument("--episode", type=int, default=0, help="episode number (default 0)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the episodes (default 0)")
    parser.add_argument("--side", type=int, default=480, help="side of the picture in pixels (default 480)")
    parser.add_argument("--settings", default="{}", help="other settings as JSON, e.g. '{\"latency\": 0.2}'")
    parser.add_argument("--json", action="store_true", help="print what was filmed as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Film one episode; returns the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        with interruption.interruptible():
            scenes, pictures = _film(arguments)
    except (SettingsError, PolicyError, OSError, ValueError) as error:
        print(as_typed(f"record: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("record: interrupted; nothing was written.", file=sys.stderr)
        return interruption.EXIT_INTERRUPTED
    end = scenes[-1]
    report = {
        "output": str(arguments.output),
        "cause": end.cause.name.lower(),
        "flight_time_s": round(end.time_s, 3),
        "frames": len(pictures),
    }
    print(json.dumps(report) if arguments.json else f"{arguments.output}: {report['cause']} after {end.time_s:.2f} s")
    return 0


def _film(arguments: argparse.Namespace) -> tuple[list[Scene], list[NDArray[np.uint8]]]:
    """Fly the episode and write its film; the scenes, and the pictures of them."""
    if arguments.output.suffix.lower() not in (".gif", ".mp4"):
        raise SettingsError(f"--output is {str(arguments.output)!r}; allowed are names that end in .gif or .mp4.")
    settings = json.loads(arguments.settings)
    if not isinstance(settings, dict):
        raise SettingsError(f'--settings is {arguments.settings}; allowed is a JSON object, e.g. {{"latency": 0.2}}.')
    config = NavigationConfig.from_settings({"preset": arguments.preset, **settings})
    decide, observe = load_decide(arguments.policy, config, arguments.seed)
    scenes = fly_scenes(config, decide, arguments.episode, arguments.seed, observe)
    caption = f"{arguments.preset}, policy {Path(arguments.policy).name}, episode {arguments.episode}"
    with progress_bar("drawing", len(scenes)) as progress:
        pictures = frames(config, scenes, caption, 16 * max(10, round(arguments.side / 16)), progress)
    save_film(arguments.output, pictures)
    return scenes, pictures


if __name__ == "__main__":
    sys.exit(main())
