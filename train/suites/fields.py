"""Names and units of the observations of Gymnasium environments whose documentation gives them."""

from __future__ import annotations

from policy.spec import ObservationField

LEG = (
    ("hip_{0}_angle", "rad"),
    ("hip_{0}_speed", "1"),
    ("knee_{0}_angle", "rad"),
    ("knee_{0}_speed", "1"),
    ("leg_{0}_contact", "1"),
)
NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "CartPole-v1": (
        ("cart_position", "m"),
        ("cart_velocity", "m/s"),
        ("pole_angle", "rad"),
        ("pole_angular_velocity", "rad/s"),
    ),
    "MountainCar-v0": (("position", "1"), ("velocity", "1/step")),
    "MountainCarContinuous-v0": (("position", "1"), ("velocity", "1/step")),
    "Acrobot-v1": (
        ("cos_angle_1", "1"),
        ("sin_angle_1", "1"),
        ("cos_angle_2", "1"),
        ("sin_angle_2", "1"),
        ("angular_velocity_1", "rad/s"),
        ("angular_velocity_2", "rad/s"),
    ),
    "Pendulum-v1": (("cos_angle", "1"), ("sin_angle", "1"), ("angular_velocity", "rad/s")),
    "BipedalWalker-v3": (
        ("hull_angle", "rad"),
        ("hull_angular_velocity", "1"),
        ("horizontal_velocity", "1"),
        ("vertical_velocity", "1"),
        *((name.format(leg), unit) for leg in (1, 2) for name, unit in LEG),
        *((f"lidar_{ray}", "1") for ray in range(10)),
    ),
}
"""Id to the name and unit of every element, in order (Gymnasium's pages of these environments)."""


def observation_fields(environment_id: str, shape: tuple[int, ...], is_image: bool) -> tuple[ObservationField, ...]:
    """The fields of an observation of that shape: named ones, or a single field ``observation``.

    An image (height, width, channels) keeps its shape; anything else, three axes of floats too, is flattened.
    """
    names = NAMES.get(environment_id, ())
    size = 1
    for side in shape:
        size *= side
    if len(names) == size:
        return tuple(ObservationField(name, (1,), unit) for name, unit in names)
    return (ObservationField("observation", shape if is_image else (size,), "1"),)
