"""A server that stands in for AirSim: one drone of the embedded dynamics behind AirSim's RPC, on this machine only.

        quarl airsim --dialect airsim --port 41451

It answers the calls that the task makes (:mod:`airlearning_envs.simulators.airsim.simulator`); any other one answers as
a function that AirSim does not know. Pause, API control, the sticky collision, moves that cancel each other, and the
error texts are those of AirLib 1.8.1. Without ``--realtime`` ``simContinueForTime`` takes no wall time, so that a
program which steps the simulator is tried in a moment; otherwise time passes as on a clock while it is not paused.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter, validators
from numpy.typing import NDArray

from quarl import cli
from quarl.airlearning_envs.config import NavigationConfig
from quarl.airlearning_envs.errors import SettingsError
from quarl.airlearning_envs.simulators.airsim.dialects import (
    DEPTH_PLANAR,
    CameraInfo,
    CollisionInfo,
    Dialect,
    ImageRequest,
    ImageResponse,
    MultirotorState,
    Pose,
    Vector3r,
    YawMode,
    decode,
    encode,
)
from quarl.airlearning_envs.simulators.airsim.rpc import (
    AIRSIM_PORT,
    REQUEST,
    RESPONSE,
    STAND_IN,
    FrameError,
    Frames,
    pack_message,
)
from quarl.airlearning_envs.simulators.airsim.world import ASSETS, GROUND_Z_M, Drone, Scene

Floats = NDArray[np.float64]

VEHICLE = "SimpleFlight"
CAMERAS = ("0", "front_center", "")
CAMERA_AHEAD_M = 0.46
BODY_RADIUS_M = NavigationConfig().body_radius_m
_STARTED_NS = 1_600_000_000_000_000_000


class RpcFault(Exception):  # noqa: N818 (an answer, not an error here)
    """The server answers with this error text."""


class Task:
    """A move under way: its answer comes when it is done (True) or another one cancels it (False)."""

    def __init__(self, ends_ns: int) -> None:
        self.ends_ns = ends_ns
        self.answer: bool | None = None
        self._then: list[Callable[[bool], None]] = []

    def then(self, on_answer: Callable[[bool], None]) -> None:
        """Call ``on_answer`` with the answer, now or when it comes."""
        if self.answer is None:
            self._then.append(on_answer)
        else:
            on_answer(self.answer)

    def end(self, whole: bool) -> None:
        """End the task: as a whole, or cancelled."""
        if self.answer is None:
            self.answer = whole
            for on_answer in self._then:
                on_answer(whole)


class StandIn:
    """One drone's world behind AirSim's calls; every method of it may be called from any thread.

    Args:
        dialect: how structs travel.
        speed: the clock's: simulated seconds a wall second.
        stall: share of the simulated time that is lost in ``simContinueForTime``, as on a machine under load.
    """

    def __init__(
        self,
        dialect: Dialect = Dialect.AIRSIM,
        speed: float = 1.0,
        stall: float = 0.0,
    ) -> None:
        self.dialect, self.speed, self._stall = dialect, speed, stall
        self.lock = threading.RLock()
        self.paused = False
        self._elapsed_s = 0.0
        self._scene = Scene(("Ground", VEHICLE))
        self._width_deg = 90.0
        self._collision = CollisionInfo()
        self._drone = Drone(NavigationConfig(), self._touches)
        self._task: Task | None = None
        self._methods = self._table()
        self._reset()

    def call(self, method: str, params: list[Any]) -> Any:
        """Return one call, its arguments and answer as msgpack has them; a move answers with a :class:`Task`.

        Raises:
            RpcFault: with AirSim's text.
        """
        count = len(params)
        if method not in self._methods:
            raise RpcFault(f"rpclib: server could not find function '{method}' with argument count {count}.")
        kinds, function = self._methods[method]
        if count != len(kinds):
            # The two numbers are swapped in rpclib, too.
            raise RpcFault(
                f"rpclib: client error C0002: Function '{method}' was called with an invalid number of arguments. "
                f"Expected: {count}, got: {len(kinds)}"
            )
        with self.lock:
            try:
                arguments = [decode(kind, argument, self.dialect) for kind, argument in zip(kinds, params, strict=True)]
                return encode(function(*arguments), self.dialect)
            except (ValueError, re.error) as error:
                raise RpcFault(
                    f"rpclib: function '{method}' (called with {count} arg(s)) threw an exception. The exception "
                    f"contained this information: {error}"
                ) from None

    def advance(self, seconds: float) -> None:
        """Let simulated time pass, whether paused or not."""
        with self.lock:
            self._drone.advance(seconds)
            self._elapsed_s += seconds
            self._drawn = self._drone.pose()
            if self._task is not None and self._now_ns >= self._task.ends_ns:
                self._task.end(True)

    @property
    def _now_ns(self) -> int:
        return _STARTED_NS + round(self._elapsed_s * 1e9)

    def _table(self) -> dict[str, tuple[tuple[Any, ...], Callable[..., Any]]]:
        """Return each call's arguments, all of them needed, and what it does."""
        images, place, camera = (list[ImageRequest], str, bool), (str,), (str, str, bool)
        if self.dialect is Dialect.COSYS:
            images, place, camera = images[:2], (str, bool), camera[:2]  # type: ignore[assignment]
        return {
            "ping": ((), lambda: True),
            "getServerVersion": ((), lambda: self.dialect.version),
            "getMinRequiredClientVersion": ((), lambda: self.dialect.version),
            "getSettingsString": ((), self._settings),
            "listVehicles": ((), lambda: [VEHICLE]),
            "reset": ((), self._reset),
            "enableApiControl": ((bool, str), self._enable),
            "isApiControlEnabled": ((str,), lambda _: self._enabled),
            "armDisarm": ((bool, str), lambda arm, _: self._enabled),
            "cancelLastTask": ((str,), self._cancel),
            "moveByVelocityZBodyFrame": ((float, float, float, float, int, YawMode, str), self._move),
            "getMultirotorState": ((str,), lambda _: self._state()),
            "simGetCollisionInfo": ((str,), self._read_collision),
            "simPause": ((bool,), self._pause),
            "simIsPaused": ((), lambda: self.paused),
            "simContinueForTime": ((float,), self._continue),
            "simSetVehiclePose": ((Pose, bool, str), self._put),
            "simGetVehiclePose": ((str,), lambda _: self._drawn),
            "simListAssets": ((), lambda: list(ASSETS)),
            "simListSceneObjects": ((str,), self._scene.names),
            "simSpawnObject": ((str, str, Pose, Vector3r, bool, bool), lambda *given: self._scene.spawn(*given[:4])),
            "simDestroyObject": ((str,), self._scene.destroy),
            "simSetObjectPose": ((str, Pose, bool), lambda name, pose, _: self._scene.place(name, pose)),
            "simGetObjectPose": (place, lambda name, *_: self._pose_of(name)),
            "simGetImages": (images, self._images),
            "simGetCameraInfo": (camera, lambda name, *_: CameraInfo(fov=self._width(name))),
            "simSetCameraFov": ((str, float, *camera[1:]), lambda name, degrees, *_: self._widen(name, degrees)),
        }

    # The drone.

    def _settings(self) -> str:
        return json.dumps({"SettingsVersion": 1.2, "SimMode": "Multirotor", "ClockSpeed": self.speed, STAND_IN: True})

    def _reset(self) -> None:
        """Put the drone back at the start, API control off; pause and what was spawned stay."""
        self._cancel()
        self._drone.reset()
        self._enabled = False
        self._drawn = self._drone.pose()
        self._collision = CollisionInfo()
        self._note("Ground", self._drone.pose().position.array())

    def _enable(self, enabled: bool, vehicle: str) -> None:
        if self._enabled and not enabled:
            self._cancel()
            self._drone.stand()
        self._enabled = enabled

    def _cancel(self, vehicle: str = "") -> None:
        """Let the move under way answer False."""
        if self._task is not None:
            self._task.end(False)
        self._task = None

    def _move(
        self, x: float, y: float, z: float, seconds: float, drivetrain: int, yaw_mode: YawMode, vehicle: str
    ) -> Task | bool:
        """Return a move by velocity, m/s, at an altitude for some simulated time."""
        if not yaw_mode.is_rate:
            raise ValueError("the stand-in turns at yaw rates only: send a YawMode with is_rate")
        if not self._enabled:
            return True
        if seconds <= 0.0:
            return False
        self._cancel()
        self._task = Task(self._now_ns + round(seconds * 1e9))
        self._drone.move(x, y, float(np.radians(yaw_mode.yaw_or_rate)), z, seconds)
        return self._task

    def _state(self) -> MultirotorState:
        return MultirotorState(
            kinematics_estimated=self._drone.kinematics(),
            timestamp=self._now_ns,
            landed_state=int(self._drone.powered),
        )

    # Time.

    def _pause(self, paused: bool) -> None:
        self.paused = paused

    def _continue(self, seconds: float) -> None:
        """Let wall seconds pass, at once; what is lost under load is lost here. It ends paused."""
        self.advance(seconds * self.speed * (1.0 - self._stall))
        self.paused = True

    # Collisions.

    def _touches(self, place: Floats) -> bool:
        """Return whether a drone there (3,) touches something, which is noted."""
        if (met := self._scene.find_contact(place, BODY_RADIUS_M)) is not None:
            self._note(met[0], place, met[1])
            return True
        if place[2] > GROUND_Z_M + 0.02:
            self._note("Ground", place)
            return True
        return False

    def _note(self, name: str, place: Floats, depth_m: float = 0.0) -> None:
        where = Vector3r.of(place)
        self._collision = CollisionInfo(
            True, depth_m, self._now_ns, position=where, impact_point=where, object_name=name, object_id=-1
        )

    def _read_collision(self, vehicle: str) -> CollisionInfo:
        """Return the last collision, whose ``has_collided`` is cleared by reading it."""
        info = self._collision
        self._collision = CollisionInfo(**{**vars(info), "has_collided": False})
        return info

    # Places.

    def _put(self, pose: Pose, ignore_collision: bool, vehicle: str) -> None:
        """Put the drone somewhere; that is drawn after time has passed, as in AirSim while it is paused."""
        self._drone.put(pose)

    def _pose_of(self, name: str) -> Pose:
        if name == VEHICLE:
            return self._drawn
        if name == "Ground":
            return Pose()
        return self._scene.pose(name)

    def _width(self, camera: str) -> float:
        """Width of a camera's view, degrees."""
        if camera not in CAMERAS:
            raise ValueError("map::at")
        return self._width_deg

    def _widen(self, camera: str, degrees: float) -> None:
        self._width(camera)
        self._width_deg = degrees

    def _images(self, requests: list[ImageRequest], vehicle: str, external: bool = False) -> list[ImageResponse]:
        """Depth pictures along the optical axis, from the nose as it was last drawn."""
        answers = []
        for request in requests:
            reach = math.tan(math.radians(self._width(request.camera_name) / 2.0))
            if request.image_type != DEPTH_PLANAR or not request.pixels_as_float:
                raise ValueError("the stand-in makes DepthPlanar pictures as floats only")
            turned = self._drawn.orientation.matrix()
            eye = self._drawn.position.array() + CAMERA_AHEAD_M * turned[:, 0]
            picture = self._scene.depth_picture(eye, turned, reach)
            answers.append(
                ImageResponse(
                    image_data_uint8=b"\0",  # AirSim sends one byte where there are none
                    image_data_float=picture.ravel().tolist(),
                    camera_position=Vector3r.of(eye),
                    camera_name=request.camera_name,
                    camera_orientation=self._drawn.orientation,
                    time_stamp=self._now_ns,
                    pixels_as_float=True,
                    width=picture.shape[1],
                    height=picture.shape[0],
                    image_type=request.image_type,
                )
            )
        return answers


TICK_S = 0.02


class Server:
    """Serves a world on 127.0.0.1 from threads of its own, while it is open as a context.

    Args:
        world: what is called.
        port: where to listen; 0 takes a free one.
        realtime: ``simContinueForTime`` answers after the wall seconds it was given.

    Attributes:
        port: where it listens.

    Raises:
        SettingsError: the port is taken.
    """

    def __init__(self, world: StandIn, port: int = 0, realtime: bool = False) -> None:
        self._world, self._realtime = world, realtime
        try:
            self._listening = socket.create_server(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise SettingsError(f"port {port} cannot be had: {error}; --port 0 takes a free one.") from None
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._ended = threading.Event()

    def __enter__(self) -> Server:
        for target in (self._accept, self._tick):
            threading.Thread(target=target, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):  # wakes accept
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._ended.is_set():
                connection, _ = self._listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open.add(connection)
                threading.Thread(target=self._converse, args=[connection], daemon=True).start()

    def _tick(self) -> None:
        """Time passes while it is not paused; a machine under load makes it slower."""
        while not self._ended.wait(TICK_S):
            with self._world.lock:
                if not self._world.paused:
                    self._world.advance(TICK_S * self._world.speed)

    def _converse(self, connection: socket.socket) -> None:
        """Answer one client until it hangs up or sends what is no msgpack-rpc."""
        sending = threading.Lock()

        def answer(number: Any, error: str | None, result: Any) -> None:
            with sending, contextlib.suppress(OSError):
                connection.sendall(pack_message([RESPONSE, number, error, result], single=True))

        frames = Frames()
        with connection, contextlib.suppress(OSError, FrameError):
            while data := connection.recv(1 << 16):
                for message in frames.feed(data):
                    if message[0] == REQUEST and len(message) == 4:
                        self._answer(message, answer)
        self._open.discard(connection)

    def _answer(self, message: list[Any], answer: Any) -> None:
        _, number, method, params = message
        if not isinstance(method, str) or not isinstance(params, list):
            return
        try:
            result = self._world.call(method, params)
        except RpcFault as fault:
            answer(number, str(fault), None)
            return
        if self._realtime and method == "simContinueForTime":
            self._ended.wait(params[0])
        if isinstance(result, Task):
            result.then(lambda whole: answer(number, None, whole))
        else:
            answer(number, None, result)


@Parameter(name="*")
@dataclass(kw_only=True)
class Options:
    """Stand in for AirSim.

    Attributes:
        dialect: whose RPC
        port: 0 takes a free one
        stall: share of the time that simContinueForTime loses: 0 to less than 1
        speed: simulated seconds a wall second: more than 0 to 1000
        realtime: simContinueForTime takes its wall seconds
    """

    dialect: Literal["airsim", "colosseum", "cosys"] = "airsim"
    port: int = AIRSIM_PORT
    stall: Annotated[float, Parameter(metavar="SHARE", validator=validators.Number(gte=0.0, lt=1.0))] = 0.0
    speed: Annotated[float, Parameter(metavar="X", validator=validators.Number(gt=0.0, lte=1000.0))] = 1.0
    realtime: bool = False


@cli.verb(left="the server has ended.")
def serve(options: Options) -> None:
    """Stand in for AirSim with one drone of the embedded dynamics, on 127.0.0.1, until Ctrl-C.

    quarl airsim
    quarl airsim --dialect cosys --port 0 --realtime
    """
    world = StandIn(Dialect(options.dialect), speed=options.speed, stall=options.stall)
    with Server(world, options.port, options.realtime) as server:
        print(f"{options.dialect} on 127.0.0.1:{server.port}; Ctrl-C ends it.", flush=True)
        threading.Event().wait()


main = cli.of("airsim")

if __name__ == "__main__":
    raise SystemExit(main())
