"""How AirSim's structs travel: as maps in AirSim 1.8 and Cosys-AirSim, as arrays in Colosseum 2.3.

A struct is a frozen dataclass with AirSim's names; its fields stand in the order in which Colosseum sends them. Lengths
are metres, angles radians (a yaw mode's degrees), times nanoseconds of the simulator's clock; x ahead, y to the right,
z down.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Kind = TypeVar("Kind")

DEPTH_PLANAR = 1
"""Image type: the distance along the optical axis."""


class Dialect(Enum):
    """Which server speaks."""

    AIRSIM = "airsim"
    COLOSSEUM = "colosseum"
    COSYS = "cosys"

    @property
    def label(self) -> str:
        """The server's name in words."""
        return {"airsim": "AirSim", "colosseum": "Colosseum", "cosys": "Cosys-AirSim"}[self.value]

    @property
    def version(self) -> int:
        """What the server says its version is, and the oldest client that it takes."""
        return 4 if self is Dialect.COSYS else 1

    @property
    def arrays(self) -> bool:
        """Whether structs are arrays, not maps."""
        return self is Dialect.COLOSSEUM


class BadCastError(ValueError):
    """A received value is not the struct that was expected: ``std::bad_cast`` in rpclib's words."""

    def __init__(self) -> None:
        super().__init__("std::bad_cast")


def _only(default: Any, *dialects: Dialect) -> Any:
    """Return a field that some dialects know."""
    return field(default=default, metadata={"only": dialects})


_NEWER = (Dialect.COLOSSEUM, Dialect.COSYS)


@dataclass(frozen=True)
class Vector3r:
    """A vector."""

    x_val: float = 0.0
    y_val: float = 0.0
    z_val: float = 0.0

    @classmethod
    def of(cls, vector: NDArray[np.floating]) -> Vector3r:
        """Make a vector from an array (3,)."""
        return cls(*map(float, vector))

    def array(self) -> Floats:
        """Return the vector as an array (3,)."""
        return np.array([self.x_val, self.y_val, self.z_val])


@dataclass(frozen=True)
class Quaternionr:
    """An attitude: from the body's axes (forward, right, down) to the world's."""

    w_val: float = 1.0
    x_val: float = 0.0
    y_val: float = 0.0
    z_val: float = 0.0

    @classmethod
    def of(cls, yaw: float, pitch: float = 0.0, roll: float = 0.0) -> Quaternionr:
        """Make the rotation by yaw, then pitch (nose up), then roll (to the right); rad."""
        (cy, sy), (cp, sp), (cr, sr) = ((math.cos(a / 2.0), math.sin(a / 2.0)) for a in (yaw, pitch, roll))
        return cls(
            cr * cp * cy + sr * sp * sy,
            sr * cp * cy - cr * sp * sy,
            cr * sp * cy + sr * cp * sy,
            cr * cp * sy - sr * sp * cy,
        )

    def angles(self) -> tuple[float, float, float]:
        """Yaw, pitch, roll; rad."""
        w, x, y, z = self.w_val, self.x_val, self.y_val, self.z_val
        return (
            math.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z)),
            math.asin(min(max(2.0 * (w * y - z * x), -1.0), 1.0)),
            math.atan2(2.0 * (w * x + y * z), 1.0 - 2.0 * (x * x + y * y)),
        )

    def matrix(self) -> Floats:
        """(3, 3), whose columns are the body's axes in the world."""
        w, x, y, z = self.w_val, self.x_val, self.y_val, self.z_val
        return np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )


@dataclass(frozen=True)
class Pose:
    """Where something is and how it is turned."""

    position: Vector3r = Vector3r()
    orientation: Quaternionr = Quaternionr()

    @classmethod
    def nowhere(cls) -> Pose:
        """Return the pose of what is not there."""
        return cls(Vector3r(*[math.nan] * 3), Quaternionr(*[math.nan] * 4))


@dataclass(frozen=True)
class YawMode:
    """A yaw rate in degrees a second, or a yaw in degrees."""

    is_rate: bool = True
    yaw_or_rate: float = 0.0


@dataclass(frozen=True)
class CollisionInfo:
    """The last collision; ``has_collided`` until it is read."""

    has_collided: bool = False
    penetration_depth: float = 0.0
    time_stamp: int = 0
    normal: Vector3r = Vector3r()
    impact_point: Vector3r = Vector3r()
    position: Vector3r = Vector3r()
    object_name: str = ""
    object_id: int = -1


@dataclass(frozen=True)
class KinematicsState:
    """How the drone moves: the angular ones about the body's axes, the others in the world."""

    position: Vector3r = Vector3r()
    orientation: Quaternionr = Quaternionr()
    linear_velocity: Vector3r = Vector3r()
    angular_velocity: Vector3r = Vector3r()
    linear_acceleration: Vector3r = Vector3r()
    angular_acceleration: Vector3r = Vector3r()


@dataclass(frozen=True)
class GeoPoint:
    """A place on Earth, degrees and metres."""

    latitude: float = 47.641468
    longitude: float = -122.140165
    altitude: float = 122.0


@dataclass(frozen=True)
class RCData:
    """A remote control that is not there."""

    timestamp: int = 0
    pitch: float = 0.0
    roll: float = 0.0
    throttle: float = 0.0
    yaw: float = 0.0
    left_z: float = 0.0
    right_z: float = 0.0
    switches: int = 0
    vendor_id: str = ""
    is_initialized: bool = False
    is_valid: bool = False


@dataclass(frozen=True)
class MultirotorState:
    """What ``getMultirotorState`` answers; its collision is never set."""

    collision: CollisionInfo = CollisionInfo()
    kinematics_estimated: KinematicsState = KinematicsState()
    gps_location: GeoPoint = GeoPoint()
    timestamp: int = 0
    landed_state: int = 0
    rc_data: RCData = RCData()
    ready: bool = _only(True, *_NEWER)
    ready_message: str = _only("", *_NEWER)
    can_arm: bool = _only(True, *_NEWER)


@dataclass(frozen=True)
class CameraInfo:
    """A camera on the drone; degrees."""

    pose: Pose = Pose()
    fov: float = 90.0


@dataclass(frozen=True)
class ImageRequest:
    """A request for a picture."""

    camera_name: str = "0"
    image_type: int = DEPTH_PLANAR
    pixels_as_float: bool = False
    compress: bool = False
    annotation_name: str = _only("", Dialect.COSYS)


@dataclass(frozen=True)
class ImageResponse:
    """A picture: ``image_data_float`` holds height x width values, the top row first."""

    image_data_uint8: bytes = b""
    image_data_float: list[float] = field(default_factory=list)
    camera_position: Vector3r = Vector3r()
    camera_name: str = ""
    camera_orientation: Quaternionr = Quaternionr()
    time_stamp: int = 0
    message: str = ""
    pixels_as_float: bool = False
    compress: bool = False
    width: int = 0
    height: int = 0
    image_type: int = 0
    annotation_name: str = _only("", Dialect.COSYS)

    def picture(self) -> NDArray[np.float32]:
        """(height, width) of its values.

        Raises:
            BadCastError: it holds another number of them.
        """
        values = np.asarray(self.image_data_float, np.float32)
        if values.size != self.height * self.width:
            raise BadCastError
        return values.reshape(self.height, self.width)


@cache
def fields_of(kind: type, dialect: Dialect) -> tuple[tuple[str, Any], ...]:
    """Names and types of a struct's fields that a dialect knows, in order."""
    types = get_type_hints(kind)
    return tuple(
        (member.name, types[member.name])
        for member in dataclasses.fields(kind)
        if dialect in member.metadata.get("only", (dialect,))
    )


def encode(value: Any, dialect: Dialect) -> Any:
    """Return a value as msgpack knows it: structs, and lists of them, as the dialect has them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        known = [(name, encode(getattr(value, name), dialect)) for name, _ in fields_of(type(value), dialect)]
        return [part for _, part in known] if dialect.arrays else dict(known)
    if isinstance(value, list) and value and dataclasses.is_dataclass(value[0]):
        return [encode(item, dialect) for item in value]
    return value


def decode(kind: type[Kind], value: Any, dialect: Dialect) -> Kind:
    """Decode a received struct, number, text or list; missing fields keep their defaults, as rpclib has it.

    Raises:
        BadCastError: it is something else.
    """
    return cast(Kind, _decode_value(kind, value, dialect))


def _decode_value(kind: Any, value: Any, dialect: Dialect) -> Any:
    if dataclasses.is_dataclass(kind):
        return _struct(cast(type, kind), value, dialect)
    if get_origin(kind) is list and isinstance(value, list):
        (part,) = get_args(kind)
        # The thousands of numbers of a picture are taken as they come.
        return value if part is float else [_decode_value(part, item, dialect) for item in value]
    if kind is float and type(value) is int:
        return float(value)
    if kind is bytes and isinstance(value, list):  # a server without msgpack's bytes
        return bytes(value)
    if type(value) is not kind:
        raise BadCastError
    return value


def _struct(kind: type, value: Any, dialect: Dialect) -> Any:
    fields = fields_of(kind, dialect)
    if dialect.arrays and isinstance(value, list):
        return kind(
            **{name: _decode_value(part, member, dialect) for (name, part), member in zip(fields, value, strict=False)}
        )
    if not dialect.arrays and isinstance(value, dict):
        return kind(**{name: _decode_value(part, value[name], dialect) for name, part in fields if name in value})
    raise BadCastError


def detect(call: Callable[..., Any]) -> Dialect:
    """Which dialect a server speaks, from its version and from how it answers where the drone is.

    Args:
        call: ``call(method, *arguments)`` of the server.
    """
    if int(call("getServerVersion")) >= Dialect.COSYS.version:
        return Dialect.COSYS
    return Dialect.COLOSSEUM if isinstance(call("simGetVehiclePose", ""), list) else Dialect.AIRSIM
