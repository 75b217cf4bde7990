"""A top-down picture of a flight: arena, obstacles, movers, what the drone sees, where it has been, the goal."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.layout import FAR_AWAY_M, Slots
from quarl.airlearning_envs.rules import EndCause, ray_angles
from quarl.airlearning_envs.simulators.embedded.sensing import RangeSensor
from quarl.airlearning_envs.task import NavigationTask

SIDE_PX = 640
"""Side of the picture; a multiple of 16, as video codecs want."""

_FINE = 2  # drawn this much larger, then scaled down: smooth edges
_FRAME_PX = 40  # room around the arena, for the caption
_PAPER, _FLOOR, _GRID, _WALL, _INK = (236, 239, 244), (252, 252, 250), (228, 232, 238), (76, 86, 106), (46, 52, 64)
_CYLINDER, _BOX, _MOVER = (120, 134, 156), (146, 132, 120), (208, 98, 70)
_SIGHT, _RAY, _TRAIL, _DRONE = (94, 129, 172, 46), (94, 129, 172, 120), (64, 120, 192), (28, 66, 130)
_GOAL, _GOAL_AREA = (60, 140, 84), (120, 190, 130, 90)
_VERDICTS = {
    EndCause.GOAL: ("goal reached", _GOAL),
    EndCause.COLLISION: ("collision", (190, 40, 50)),
    EndCause.COLLISION_MOVER: ("hit by a mover", (190, 40, 50)),
    EndCause.LEFT_ARENA: ("left the arena", (190, 40, 50)),
    EndCause.TIME: ("out of time", (190, 120, 20)),
}


_font = functools.cache(ImageFont.load_default)  # by size; not kept by a painter, since a font cannot be copied


@dataclass(frozen=True)
class Scene:
    """One drone's surroundings at one moment; metres, the arena's centre is the origin.

    Attributes:
        position, velocity, goal: (2,).
        yaw: radians, clockwise.
        centre, size: (2, N) and (N,) obstacles.
        mover_velocity: (2, M).
        time_s: flight time.
        goal_distance_m: distance to the goal.
        cause: why the episode has ended, if it has.
        episode_id: which episode.
    """

    position: NDArray[np.float32]
    velocity: NDArray[np.float32]
    goal: NDArray[np.float32]
    yaw: float
    centre: NDArray[np.float32]
    size: NDArray[np.float32]
    mover_velocity: NDArray[np.float32]
    time_s: float
    goal_distance_m: float
    cause: EndCause
    episode_id: int

    @classmethod
    def of(cls, core: NavigationTask, row: int) -> Scene:
        """Return the scene of one drone of a batch, copied."""
        motion, obstacles = core.simulator.motion, core.simulator.obstacles
        return cls(
            position=motion.position[:, row].copy(),
            velocity=motion.velocity[:, row].copy(),
            goal=core.goal[:, row].copy(),
            yaw=float(motion.yaw[row]),
            centre=obstacles.centre[:, row].copy(),
            size=obstacles.size[row].copy(),
            mover_velocity=obstacles.velocity[:, row].copy(),
            time_s=float(core.flight_time[row]),
            goal_distance_m=float(core.goal_distance[row]),
            cause=EndCause(int(core.cause[row])),
            episode_id=int(core.episode_id[row]),
        )

    def towards(self, later: Scene, share: float) -> Scene:
        """Return the scene ``share`` (0 to 1) of the way to a later one of the same episode."""
        mixed = {
            name: (1.0 - share) * getattr(self, name) + share * getattr(later, name)
            for name in ("position", "velocity", "yaw", "centre", "time_s", "goal_distance_m")
        }
        mixed["position"], mixed["centre"] = mixed["position"].astype(np.float32), mixed["centre"].astype(np.float32)
        cause = later.cause if share >= 1.0 else EndCause.NONE
        return Scene(
            **mixed,
            goal=self.goal,
            size=self.size,
            mover_velocity=later.mover_velocity,
            cause=cause,
            episode_id=self.episode_id,
        )


class Painter:
    """Draws scenes of one task.

    Args:
        config: the task.
        side_px: side of the picture in pixels.
    """

    def __init__(self, config: NavigationConfig, side_px: int = SIDE_PX) -> None:
        self._config, self._side = config, side_px
        self._slots = Slots.of(config)
        self._angles = ray_angles(config)
        self._sensor = RangeSensor(config, self._angles, config.max_range_m)
        self._frame = _FRAME_PX * side_px / SIDE_PX * _FINE
        self._scale = (side_px * _FINE - 2.0 * self._frame) / config.arena_m
        self._font_px = 15.0 * _FINE * side_px / SIDE_PX

    def draw(self, scene: Scene, trail: list[NDArray[np.float32]], caption: str = "") -> NDArray[np.uint8]:
        """Return the picture (side, side, 3) uint8.

        Args:
            scene: what to draw.
            trail: (2,) positions so far, oldest first.
            caption: text on the top left.
        """
        picture = Image.new("RGB", (self._side * _FINE, self._side * _FINE), _PAPER)
        canvas = ImageDraw.Draw(picture, "RGBA")
        self._draw_arena(canvas)
        self._draw_goal(canvas, scene)
        self._draw_sight(canvas, scene)
        self._draw_obstacles(canvas, scene)
        self._draw_trail(canvas, [*trail, scene.position])
        self._draw_drone(canvas, scene)
        self._draw_words(canvas, scene, caption)
        return np.asarray(picture.resize((self._side, self._side), Image.Resampling.LANCZOS), dtype=np.uint8)

    def _pixel(self, x: float, y: float) -> tuple[float, float]:
        """x is ahead at yaw 0 and points right, y points down: yaw turns clockwise, as seen from above."""
        half = self._config.half_m
        return self._frame + (float(x) + half) * self._scale, self._frame + (float(y) + half) * self._scale

    def _disc(self, x: float, y: float, radius: float) -> tuple[float, float, float, float]:
        return (*self._pixel(x - radius, y - radius), *self._pixel(x + radius, y + radius))

    def _draw_arena(self, canvas: ImageDraw.ImageDraw) -> None:
        half = self._config.half_m
        canvas.rectangle((*self._pixel(-half, -half), *self._pixel(half, half)), fill=_FLOOR)
        for k in range(math.ceil(-half / 5.0), math.floor(half / 5.0) + 1):
            canvas.line((*self._pixel(5 * k, -half), *self._pixel(5 * k, half)), fill=_GRID, width=_FINE)
            canvas.line((*self._pixel(-half, 5 * k), *self._pixel(half, 5 * k)), fill=_GRID, width=_FINE)
        canvas.rectangle((*self._pixel(-half, -half), *self._pixel(half, half)), outline=_WALL, width=3 * _FINE)

    def _draw_goal(self, canvas: ImageDraw.ImageDraw, scene: Scene) -> None:
        x, y = scene.goal
        canvas.ellipse(self._disc(x, y, self._config.success_radius_m), fill=_GOAL_AREA, outline=_GOAL, width=_FINE)
        canvas.ellipse(self._disc(x, y, 0.35), fill=_GOAL)

    def _draw_sight(self, canvas: ImageDraw.ImageDraw, scene: Scene) -> None:
        cosine, sine = np.array([[math.cos(scene.yaw)], [math.sin(scene.yaw)]], np.float32)
        ranges, _ = self._sensor.scan(scene.position[:, None], cosine, sine, scene.centre[:, None], scene.size[None])
        x, y = scene.position
        origin = self._pixel(x, y)
        ends = [
            self._pixel(
                scene.position[0] + r * math.cos(scene.yaw + a), scene.position[1] + r * math.sin(scene.yaw + a)
            )
            for r, a in zip(ranges[0], self._angles, strict=True)
        ]
        canvas.polygon([origin, *ends], fill=_SIGHT)
        for end, reach in zip(ends, ranges[0], strict=True):
            canvas.line((*origin, *end), fill=_RAY, width=1)
            if reach < self._config.max_range_m:
                canvas.ellipse((end[0] - 3, end[1] - 3, end[0] + 3, end[1] + 3), fill=_DRONE)

    def _draw_obstacles(self, canvas: ImageDraw.ImageDraw, scene: Scene) -> None:
        slots = self._slots
        for k in reversed(range(slots.total)):
            (x, y), size = scene.centre[:, k], float(scene.size[k])
            if x > FAR_AWAY_M / 2:
                continue
            if k >= slots.circles:
                canvas.rectangle(self._disc(x, y, size), fill=_BOX, outline=_INK, width=_FINE)
                continue
            colour = _MOVER if k < slots.movers else _CYLINDER
            canvas.ellipse(self._disc(x, y, size), fill=colour, outline=_INK, width=_FINE)
            if k < slots.movers:  # where it will be in a second
                vx, vy = scene.mover_velocity[:, k]
                canvas.line((*self._pixel(x, y), *self._pixel(x + vx, y + vy)), fill=(*_MOVER, 200), width=2 * _FINE)

    def _draw_trail(self, canvas: ImageDraw.ImageDraw, trail: list[NDArray[np.float32]]) -> None:
        for k in range(1, len(trail)):
            opacity = 50 + int(190 * k / len(trail))
            ends = (*self._pixel(*trail[k - 1]), *self._pixel(*trail[k]))
            canvas.line(ends, fill=(*_TRAIL, opacity), width=2 * _FINE)

    def _draw_drone(self, canvas: ImageDraw.ImageDraw, scene: Scene) -> None:
        x, y = scene.position
        body = self._config.body_radius_m
        colour = _VERDICTS[scene.cause][1] if scene.cause is not EndCause.NONE else _DRONE
        canvas.ellipse(self._disc(x, y, body), fill=(*colour, 90), outline=colour, width=_FINE)
        # An arrowhead twice the drone's size shows the heading.
        tip = [(2.4 * body, 0.0), (-1.3 * body, 1.3 * body), (-0.6 * body, 0.0), (-1.3 * body, -1.3 * body)]
        c, s = math.cos(scene.yaw), math.sin(scene.yaw)
        canvas.polygon([self._pixel(x + c * px - s * py, y + s * px + c * py) for px, py in tip], fill=colour)

    def _draw_words(self, canvas: ImageDraw.ImageDraw, scene: Scene, caption: str) -> None:
        top, end = self._frame / 2.0, self._side * _FINE - self._frame / 2.0
        left, right = self._frame, self._side * _FINE - self._frame
        speed, font = float(np.hypot(*scene.velocity)), _font(self._font_px)
        canvas.text((left, top), caption or f"episode {scene.episode_id}", _INK, font, anchor="lm")
        figures = f"{scene.time_s:5.2f} s   {speed:4.1f} m/s   goal {scene.goal_distance_m:4.1f} m"
        canvas.text((left, end), figures, _INK, font, anchor="lm")
        if scene.cause is not EndCause.NONE:
            words, colour = _VERDICTS[scene.cause]
            canvas.text((right, end), words, colour, font, anchor="rm")


class Picture:
    """Follows one drone of a batch and draws it with its trail.

    Args:
        core: the simulator.
        row: which drone.
        caption: text on the top left; the episode's number by default.
    """

    def __init__(self, core: NavigationTask, row: int, caption: str = "") -> None:
        self._core, self._row, self._caption = core, row, caption
        self._painter = Painter(core.config)
        self._trail: list[NDArray[np.float32]] = []

    def follow(self, start: bool) -> None:
        """Note where the drone is now; ``start`` when a new episode has begun."""
        if start:
            self._trail.clear()
        self._trail.append(self._core.simulator.motion.position[:, self._row].copy())

    def draw(self) -> NDArray[np.uint8]:
        """Return the picture (640, 640, 3) uint8 of now."""
        return self._painter.draw(Scene.of(self._core, self._row), self._trail, self._caption)
