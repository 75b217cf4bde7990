"""Film one episode: ``quarl record --preset hard --policy blind --output flight.gif``.

The policy is ``blind``, ``random``, or a bundle (``III``, or its folder), which is flown with the numpy forward pass.
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from numpy.typing import NDArray
from PIL import Image

from quarl import cli
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.flights import Decide, Observe, as_it_is, blind_policy, random_policy, select_observation
from quarl.airlearning_envs.render import SIDE_PX, Painter, Scene
from quarl.airlearning_envs.simulators.opening import json_object
from quarl.airlearning_envs.task import NavigationTask
from quarl.policy import pilot
from quarl.policy.files import write_atomically


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar that the yielded function moves: (done, total)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda done, total: bar.update(task, completed=done, total=total)


FRAMES_PER_SECOND = 20
"""Frame rate of the film, which runs in real time: one frame for each 50 ms of flight."""

_LAST_FRAME_S = 1.5  # the end stays on the screen this long


def load_decide(policy: str, config: NavigationConfig, seed: int) -> tuple[Decide, Observe]:
    """Return the policy of a name, observations -> actions, and what it is shown.

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
    fields, observe = select_observation(bundle.spec.observation, config)
    bundle.spec.check_observation(fields)
    weights = bundle.weights()
    return deciding(bundle.spec, lambda observation: forward_float(bundle.spec, weights, observation)), observe


def fly_scenes(
    config: NavigationConfig, decide: Decide, episode: int, seed: int, observe: Observe = as_it_is
) -> list[Scene]:
    """Return the scenes of one episode, one a decision, the start and the end included."""
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


def check_film(option: str, path: Path) -> None:
    """Raise SettingsError unless a film can have this name."""
    if path.suffix.lower() not in (".gif", ".mp4"):
        raise SettingsError(f"{option} is {str(path)!r}; allowed are names that end in .gif or .mp4.")


def save_film(path: Path, pictures: Sequence[NDArray[np.uint8]]) -> None:
    """Write a .gif or .mp4, whole or not at all.

    Raises:
        SettingsError: the suffix is neither.
    """
    check_film("--output", path)
    if path.suffix.lower() == ".gif":
        data = _encode_gif(pictures)
    else:
        import imageio.v3 as imageio

        data = imageio.imwrite("<bytes>", np.stack(pictures), extension=".mp4", fps=FRAMES_PER_SECOND, codec="libx264")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def _encode_gif(pictures: Sequence[NDArray[np.uint8]]) -> bytes:
    """Return one palette for all pictures and no dithering: most pixels stay as they were, which a GIF stores as
    nothing."""
    last = Image.fromarray(pictures[-1]).quantize(96, dither=Image.Dither.NONE)
    first, *others = (Image.fromarray(each).quantize(palette=last, dither=Image.Dither.NONE) for each in pictures)
    film = io.BytesIO()
    duration_ms = 1000 // FRAMES_PER_SECOND
    first.save(film, "GIF", save_all=True, append_images=others, duration=duration_ms, loop=0, optimize=True)
    return film.getvalue()


def draw_film(
    path: Path, config: NavigationConfig, scenes: Sequence[Scene], caption: str, side_px: int = SIDE_PX
) -> int:
    """Draw scenes and write them; the number of frames."""
    with progress_bar("drawing", len(scenes)) as progress:
        pictures = frames(config, scenes, caption, side_px, progress)
    save_film(path, pictures)
    return len(pictures)


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Film one episode.

    Attributes:
        preset: an arena: easy, medium, shipped, hard
        policy: blind, random, or a bundle's name or folder
        output: a .gif or .mp4
        episode: its number
        seed: of the episodes
        side: of the picture, in pixels
        settings: others of the task as JSON, e.g. '{"latency": 0.2}'
        json: print the film's episode as JSON
    """

    preset: str = "hard"
    policy: str = "blind"
    output: Path = Path("flight.gif")
    episode: int = 0
    seed: int = 0
    side: int = 480
    settings: Annotated[dict[str, Any], cli.reads(json_object, "JSON", accepts_keys=False, show_default=False)] = field(
        default_factory=dict
    )
    json: bool = False


@cli.verb(left="nothing was written.")
def run(options: Options) -> tuple[dict[str, Any], str]:
    """Film one episode.

    quarl record --policy III --preset hard --output flight.mp4
    quarl record --policy blind --episode 3
    """
    check_film("--output", options.output)
    config = NavigationConfig.from_settings({"preset": options.preset, **options.settings})
    decide, observe = load_decide(options.policy, config, options.seed)
    scenes = fly_scenes(config, decide, options.episode, options.seed, observe)
    caption = f"{options.preset}, policy {Path(options.policy).name}, episode {options.episode}"
    count = draw_film(options.output, config, scenes, caption, 16 * max(10, round(options.side / 16)))
    end = scenes[-1]
    report = {
        "output": str(options.output),
        "cause": end.cause.name.lower(),
        "flight_time_s": round(end.time_s, 3),
        "frames": count,
    }
    return report, f"{options.output}: {report['cause']} after {end.time_s:.2f} s"


main = cli.of("record")

if __name__ == "__main__":
    raise SystemExit(main())
