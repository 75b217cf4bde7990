"""The navigation task's drone in AirSim, Colosseum or Cosys-AirSim, or in the server that stands in for them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quarl.airlearning_envs import rules
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.layout import Layouts, Slots
from quarl.airlearning_envs.simulators.airsim import links, sight
from quarl.airlearning_envs.simulators.airsim.arena import SCALABLE, Arena, clock_speed, settings_of
from quarl.airlearning_envs.simulators.airsim.dialects import (
    CollisionInfo,
    Dialect,
    KinematicsState,
    MultirotorState,
    Pose,
    Quaternionr,
    Vector3r,
    YawMode,
)
from quarl.airlearning_envs.simulators.airsim.rpc import (
    AIRSIM_PORT,
    STAND_IN,
    AirSimError,
    ConnectionLostError,
    NotReachableError,
    NotRpcError,
    RpcError,
)
from quarl.airlearning_envs.simulators.embedded.dynamics import CallsInForce, Flight, Integrator
from quarl.airlearning_envs.simulators.embedded.simulator import LONGEST_PIECE_S
from quarl.airlearning_envs.simulators.simulator import (
    Bools,
    Call,
    Capabilities,
    Clock,
    Floats,
    Motion,
    Obstacles,
    Rows,
    Simulator,
    SpoiledFlightError,
    Track,
)


@dataclass(frozen=True)
class AirSimOptions:
    """How a server is reached and used.

    Attributes:
        address: host:port.
        client: which Python client to use, see :data:`~airlearning_envs.simulators.airsim.links.CLIENTS`.
        dialect: which server it is; found out where None.
        assets: names of the assets for ``box`` and ``cylinder``.
        origin_m: where the arena's centre is, from the vehicle's start.
        timeout_s: an answer comes within this time.
        reconnect_s: a connection that is lost is tried again for so long; the flight under way does not count then.
    """

    address: str = f"127.0.0.1:{AIRSIM_PORT}"
    client: str = links.AUTO
    dialect: Dialect | None = None
    assets: Mapping[str, str] = field(default_factory=dict)
    origin_m: tuple[float, float] = (0.0, 0.0)
    timeout_s: float = 30.0
    reconnect_s: float = 5.0


class Pieces:
    """A track in the making: each slice's straight line cut into equal pieces.

    Args:
        begin: (2,) where the drone is.
        cuts: pieces of a slice.
    """

    def __init__(self, begin: Floats, cuts: int) -> None:
        self._places, self._cuts = [begin.astype(np.float32)], cuts

    def add(self, place: Floats) -> None:
        """Note that a slice ended at a place (2,)."""
        before = self._places[-1]
        shares = [np.float32((k + 1) / self._cuts) for k in range(self._cuts)]
        self._places += [before + share * (place - before) for share in shares[:-1]] + [place.copy()]

    def track(self, ends_s: NDArray[np.float64], slices: int, contact: int = rules.NONE) -> Track:
        """Slices that ended this many seconds (n,) after the period's begin; a contact was in the last one."""
        while len(self._places) < slices * self._cuts + 1:
            self.add(self._places[-1])
        position = np.stack(self._places)[:, :, None]
        begins = np.concatenate([[0.0], ends_s[:-1]])
        shares = np.arange(1, self._cuts + 1) / self._cuts
        times = (begins[:, None] + shares * (ends_s - begins)[:, None]).ravel()
        lengths = np.sqrt(((position[1:] - position[:-1]) ** 2).sum(axis=1))
        return Track(
            position.astype(np.float32),
            lengths.astype(np.float32),
            times.astype(np.float32),
            np.array([contact], np.int8),
            np.array([len(times) - 1]),
        )


HARDEST_M_S2 = 6.3
"""Largest horizontal acceleration: the one at the greatest tilt."""
SPEED_M_S, JUMP_M = 0.35, 0.3
"""A period that ends with another velocity or at another place than these allow was not flown as commanded."""

STILL_M_S, STILL_RAD_S, LEVEL_M = 0.03, 0.01, 0.05
"""A drone that hovers is slower, turns less and is nearer to its altitude."""


def is_at_rest(moving: KinematicsState, place: NDArray[np.float64]) -> bool:
    """Return whether a drone hovers at the altitude of a place (3,)."""
    return bool(
        np.linalg.norm(moving.linear_velocity.array()) < STILL_M_S
        and abs(moving.angular_velocity.z_val) < STILL_RAD_S
        and abs(moving.position.z_val - place[2]) < LEVEL_M
    )


class Shadow:
    """Flies ahead from the last measured state.

    Args:
        config: the task.
    """

    def __init__(self, config: NavigationConfig) -> None:
        self._step_s = config.control_period_s / config.substeps
        self._flight = Flight.hovering(config, 1)
        self._integrator = Integrator(self._flight, self._step_s)
        self._times = (np.arange(1, config.substeps + 1) * self._step_s).astype(np.float32)
        self._in_force = CallsInForce(self._integrator, self._times)
        self._calls: list[tuple[Floats, float]] = []
        self._since_s = 0.0

    def begin(self, state: MultirotorState) -> None:
        """Begin an episode, hovering."""
        self._flight.rest(slice(None))
        self._in_force.rest(np.array([0]))
        self._calls, self._since_s = [], 0.0
        self._take(state)

    def command(self, command: Floats, at_s: float) -> None:
        """Note a command (3, 1) that was given ``at_s`` seconds after the episode's start."""
        self._calls.append((command.copy(), at_s))

    def differs(self, state: MultirotorState, now_s: float) -> str:
        """Why the period that ends with ``state`` was not flown as commanded, in words; empty where it was."""
        since_s = self._since_s
        self._in_force.begin(
            [Call(command, np.array([max(at_s - since_s, 0.0)], np.float32)) for command, at_s in self._calls]
        )
        for k in range(len(self._times)):
            self._integrator.step(self._in_force.goal(k))
        flight, moving = self._flight, state.kinematics_estimated
        velocity, place = moving.linear_velocity.array()[:2], moving.position.array()[:2]
        slower = float(np.linalg.norm(velocity - flight.velocity[:2, 0]))
        # The period may have been a little longer or shorter than the one flown here.
        other_s = abs(now_s - since_s - float(self._times[-1]))
        jump = float(np.linalg.norm(place - flight.position[:2, 0])) - other_s * float(np.linalg.norm(velocity))
        slower -= other_s * HARDEST_M_S2
        self._calls, self._since_s = [], now_s
        self._take(state)
        if jump > JUMP_M:
            return f"the drone is {jump:.1f} m from where its commands bring it: something else moved it."
        if slower > SPEED_M_S:
            return (
                f"the drone's velocity is {slower:.1f} m/s off what its command makes of it: AirSim dropped the "
                "command (an overloaded machine, or too high a ClockSpeed)."
            )
        return ""

    def _take(self, state: MultirotorState) -> None:
        """Go on from a measured state."""
        flight, moving = self._flight, state.kinematics_estimated
        yaw, pitch, roll = moving.orientation.angles()
        flight.position[:, 0], flight.velocity[:, 0] = moving.position.array(), moving.linear_velocity.array()
        flight.yaw[0], flight.yaw_rate[0] = yaw, moving.angular_velocity.z_val
        flight.tilt[:, 0] = (-pitch, roll)
        self._integrator.refresh_attitude()


MOVE_S = 60.0
"""A move's own duration: it holds until the next one."""
LATE_S, OVERRUN_S = 0.01, 0.1
"""A slice of time may end so much early, which the next one makes good; so much late, the episode does not count."""
_SETTLING_S, _SETTLE_SLICE_S = 20.0, 0.25
_STANDSTILLS = 50
_MOMENT_S = 0.05
_CREDIBLE_M = 0.5
_NONE = type(None)


class AirSimSimulator(Simulator):
    """One drone in AirSim; see :class:`~airlearning_envs.simulators.simulator.Simulator`.

    Time is the server's own: a period is flown in slices of ``simContinueForTime``, each towards a time counted from
    the episode's start, so that an error is made good by the next one. What touches what is said by the server alone.

    Args:
        config: the task.
        options: how it is reached.

    Attributes:
        through: in words, which server it is and by which client it is reached.
        notes: what is not as it should be, in words.

    Raises:
        AirSimError: there is no server, or not one to fly in.
        SettingsError: an option is not allowed.
    """

    def __init__(self, config: NavigationConfig, options: AirSimOptions | None = None) -> None:
        self._options = options = options or AirSimOptions()
        self.capabilities = Capabilities(
            batch=1, deterministic=False, replayable=False, spawns=True, depth=True, wind=False, clock=Clock.MEASURED
        )
        self._config, self._origin = config, np.array([*options.origin_m, 0.0])
        self._steps = [config.control_period_s * (k + 1) / config.substeps for k in range(config.substeps)]
        self._cuts = max(1, math.ceil(config.control_period_s / config.substeps / LONGEST_PIECE_S - 1e-9))
        self.obstacles = Obstacles(Slots.of(config), 1)
        one = np.zeros(1, np.float32)
        plane = np.zeros((2, 1), np.float32)
        self._motion = Motion(plane.copy(), plane.copy(), plane.copy(), np.zeros(1), one.copy(), one + 1.0, one.copy())
        self._shadow = Shadow(config)
        self._width_deg: float | None = None
        self.notes: list[str] = []
        self._looked = False
        self._connect()

    @property
    def motion(self) -> Motion:
        """How the drone moved in the last state."""
        return self._motion

    def _connect(self) -> None:
        options = self._options
        self._link = links.connect(options.address, options.dialect, options.client, options.timeout_s)
        try:
            self._prepare(options)
        except RpcError as error:
            self._link.close()
            raise NotRpcError(f"{options.address} is no AirSim with a drone in it: {error}") from None
        except BaseException:
            self._link.close()
            raise

    @contextmanager
    def _reconnect_on_loss(self) -> Iterator[None]:
        """Connect again where the connection is lost within the block, and raise: the flight has to start over."""
        try:
            yield
        except ConnectionLostError as lost:
            self._link.close()
            end = time.monotonic() + self._options.reconnect_s
            while True:
                try:
                    self._connect()
                    break
                except (NotReachableError, ConnectionLostError):
                    if time.monotonic() > end:
                        raise lost from None
                    time.sleep(_MOMENT_S)
            raise SpoiledFlightError("the connection was lost, and made again.") from lost

    def _prepare(self, options: AirSimOptions) -> None:
        """See that it is a server to fly in, and take it over."""
        settings = settings_of(self._link)
        self._speed = clock_speed(settings)
        server = self._link.dialect.label
        self.through = f"{f'stand-in for {server}' if settings.get(STAND_IN) else server}, {self._link.through}"
        self._link.call(_NONE, "simPause", True)
        time.sleep(_MOMENT_S)  # the step that was under way may end after the answer
        self._state = self._look()
        time.sleep(_MOMENT_S)
        if self._look().timestamp != self._state.timestamp:
            raise AirSimError(f"{options.address}: {SCALABLE}")
        self._move: int | None = None
        self._moved_s = 0.0  # the movers are where they were then
        self._view: sight.View | None = None
        self._began_ns, self._goal_s = self._state.timestamp, 0.0
        self._arena = Arena(self._link, self._config, options.assets, options.origin_m)
        if self._arena.only_boxes:
            self.through += ", boxes in place of cylinders"
        self._camera = sight.Camera(self._link, self._width_deg)
        self._width_deg = self._camera.before_deg
        if self._camera.width_deg < sight.WIDE_DEG:
            self._note(
                f"the camera sees {self._camera.width_deg:g} degrees, ahead of the drone's centre: the outermost rays "
                "read what its edge reads. Set FOV_Degrees to 120 in settings.json."
            )

    # The simulator's interface.

    def begin(self, rows: Rows, arenas: Layouts) -> None:  # noqa: D102
        with self._reconnect_on_loss():
            self._begin(rows, arenas)

    def _begin(self, rows: Rows, arenas: Layouts) -> None:
        link, config = self._link, self._config
        self._state = self._look()
        link.call(_NONE, "cancelLastTask", "")  # a move under way would hold the reset up while time stands
        self._pass(self._now_s() + self._steps[0])
        self._move = None
        link.call(_NONE, "reset")
        link.call(_NONE, "simPause", True)
        link.call(_NONE, "enableApiControl", True, "")
        link.call(bool, "armDisarm", True, "")
        self.obstacles.begin(rows, arenas)
        self._arena.build(self.obstacles)
        x, y = map(float, arenas.start[:, 0])
        place = np.array([x, y, -config.altitude_m]) + self._origin
        start = Pose(Vector3r.of(place), Quaternionr.of(float(arenas.yaw[0])))
        self._put(start)
        self._settle(start)
        if (touched := self._read_collision()).has_collided:
            raise SpoiledFlightError(f"the start is not free: the drone touches {touched.object_name}.")
        self._began_ns, self._goal_s = self._state.timestamp, 0.0
        self._shadow.begin(self._state)
        if not self._looked:
            self._look_around()

    def fly(self, calls: Sequence[Call], held: Bools | None = None) -> Track:  # noqa: D102
        pieces = Pieces(self.motion.position[:, 0], self._cuts)
        if held is not None and held[0]:
            return pieces.track(np.arange(1, len(self._steps) + 1) * self._steps[0], len(self._steps))
        with self._reconnect_on_loss():
            return self._fly(calls, pieces)

    def _fly(self, calls: Sequence[Call], pieces: Pieces) -> Track:
        begin_s = self._goal_s
        due = sorted(
            ((0.0 if call.at_s is None else float(call.at_s[0]), n, call) for n, call in enumerate(calls)),
            key=lambda each: each[:2],
        )
        contact, seconds, since_s = rules.NONE, [], self._now_s()
        for end in self._steps:
            while due and due[0][0] < end - 1e-9:
                at_s, _, call = due.pop(0)
                if at_s > 1e-9:
                    self._pass(begin_s + at_s)
                self._command(call)
            self._goal_s = begin_s + end
            self.obstacles.advance(max(self._goal_s - self._moved_s, 0.0))
            self._moved_s = self._goal_s
            self._arena.move(self.obstacles)
            self._pass(self._goal_s)
            self._follow()
            seconds.append(self._now_s() - since_s)
            pieces.add(self.motion.position[:, 0])
            touched = self._read_collision()
            if touched.has_collided:
                contact = int(self._arena.cause(touched.object_name))
                break
        if contact == rules.NONE:
            self._check()
        return pieces.track(np.array(seconds), len(seconds), contact)

    def halt(self, rows: Rows, when: Rows) -> None:
        """Do nothing: what has been flown stays flown."""

    def ranges(self, angles: NDArray[np.float64], furthest_m: float, rows: Rows | None = None) -> Floats:  # noqa: D102
        return self._get_view().ranges(angles, float(self.motion.yaw[0]), furthest_m)[None]

    def depth(self, height: int, width: int, furthest_m: float) -> Floats:  # noqa: D102
        yaw, ceiling_m = float(self.motion.yaw[0]), self._config.arena_height_m
        return self._get_view().level(height, width, yaw, furthest_m, ceiling_m)[None]

    def close(self) -> None:
        """Land nobody, but take the arena away and leave the server as it was."""
        with suppress(AirSimError):
            self._camera.close()
            self._arena.clear()
            self._link.call(_NONE, "cancelLastTask", "")
            self._link.call(_NONE, "simPause", False)
            self._link.call(_NONE, "enableApiControl", False, "")
        self._link.close()

    def _look_around(self) -> None:
        """At the first start, see whether what the camera shows is the arena that was built."""
        self._looked = True
        off_m = sight.median_error_m(self._config, self._get_view(), self.motion, self.obstacles)
        if off_m > _CREDIBLE_M:
            self._note(
                f"what the camera shows is not the arena that was built: its ranges are {off_m:.1f} m off in the "
                "median. Are the assets one metre in size (--assets), and is the level empty here (--origin)?"
            )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    # Time.

    def _now_s(self) -> float:
        return (self._state.timestamp - self._began_ns) / 1e9

    def _look(self) -> MultirotorState:
        return self._link.call(MultirotorState, "getMultirotorState", "")

    def _pass(self, until_s: float) -> None:
        """Let time pass until a moment counted from the episode's start; what a slice lacks, further ones bring.

        Raises:
            AirSimError: time stands still.
            SpoiledFlightError: it ran on.
        """
        stood, least_s = 0, 1e-9
        while (left := until_s - self._now_s()) > least_s:
            before, least_s = self._state.timestamp, LATE_S
            self._link.call(_NONE, "simContinueForTime", left / self._speed)
            self._state, self._view = self._look(), None
            stood = stood + 1 if self._state.timestamp <= before else 0
            if stood >= _STANDSTILLS:
                raise AirSimError(
                    f"the simulated time stood still in {stood} slices. Is AirSim's window in front, the machine "
                    "overloaded, or another program pausing it?"
                )
        if left < -OVERRUN_S:
            raise SpoiledFlightError(f"the simulated time ran on by {-left:.2f} s.")

    # The drone.

    def _put(self, pose: Pose) -> None:
        self._link.call(_NONE, "simSetVehiclePose", pose, True, "")

    def _command(self, call: Call) -> None:
        """Give a command; what was not done of the one before spoils the flight."""
        self._check_move()
        forward, right, yaw_rate = map(float, call.command[:, 0])
        turn = YawMode(True, math.degrees(yaw_rate))
        z = -self._config.altitude_m
        self._move = self._link.start("moveByVelocityZBodyFrame", forward, right, z, MOVE_S, 0, turn, "")
        self._shadow.command(call.command, self._now_s())

    def _check_move(self) -> None:
        answer = None if self._move is None else self._link.answer(self._move)
        if answer is None:
            return
        self._move = None
        if answer:
            if not self._link.call(bool, "isApiControlEnabled", ""):
                raise SpoiledFlightError("API control was lost: another program or a remote control took it.")
            raise SpoiledFlightError("a command ended before its time.")
        raise SpoiledFlightError("another client gave the drone a command.")

    def _settle(self, start: Pose) -> None:
        """Hover until the drone is at rest where the episode begins.

        Raises:
            AirSimError: it does not come to rest.
        """
        self._state, self._view = self._look(), None
        self._command(Call(np.zeros((3, 1), np.float32)))
        place, given_up_s = start.position.array(), self._now_s() + _SETTLING_S
        again = False
        while True:
            self._read_collision()  # of the start on the ground, and of places on the way
            self._pass(self._now_s() + (self._steps[0] if again else _SETTLE_SLICE_S))
            moving = self._state.kinematics_estimated
            rests = is_at_rest(moving, place)
            away = float(np.linalg.norm(moving.position.array()[:2] - place[:2]))
            if rests and (away < 0.01 or again):
                break
            again = rests
            if rests:  # it has drifted as it came to rest
                self._put(start)
            if self._now_s() > given_up_s:
                raise AirSimError(
                    f"the drone does not hover at {-place[2]:g} m: after {_SETTLING_S:g} s it makes "
                    f"{np.linalg.norm(moving.linear_velocity.array()):.2f} m/s at {-moving.position.z_val:.2f} m. "
                    "Its settings.json needs SimpleFlight, without wind."
                )
        self._moved_s = 0.0
        self._follow()

    def _follow(self) -> None:
        """Take the last state over into :attr:`motion`."""
        moving, motion = self._state.kinematics_estimated, self.motion
        motion.position[:, 0] = moving.position.array()[:2] - self._origin[:2]
        motion.velocity[:, 0] = moving.linear_velocity.array()[:2]
        motion.acceleration[:, 0] = moving.linear_acceleration.array()[:2]
        motion.yaw[0] = moving.orientation.angles()[0]
        motion.yaw_rate[0] = moving.angular_velocity.z_val
        motion.cosine[0], motion.sine[0] = math.cos(motion.yaw[0]), math.sin(motion.yaw[0])

    def _check(self) -> None:
        """Raise unless the period was flown as commanded: the flight is spoiled otherwise."""
        self._check_move()
        if reason := self._shadow.differs(self._state, self._now_s()):
            raise SpoiledFlightError(reason)

    def _read_collision(self) -> CollisionInfo:
        """Return the last contact, which reading clears."""
        return self._link.call(CollisionInfo, "simGetCollisionInfo", "")

    def _get_view(self) -> sight.View:
        if self._view is None:
            place = self._state.kinematics_estimated.position.array()
            with self._reconnect_on_loss():
                self._view = self._camera.view(place, self._config.altitude_m)
        return self._view
