"""A served policy as the companion computer of ArduPilot or PX4: MAVLink in, velocity setpoints out.

    make robots
    quarl serve --target local --policy I
    .venv/bin/python examples/mavlink.py artifacts/local-device/home/quarl/run/I.sock udpin:127.0.0.1:14550 [NORTH EAST]

OBSTACLE_DISTANCE, LOCAL_POSITION_NED and ATTITUDE become the observation of a navigation policy, by the names and units
of its fields; each action goes out as SET_POSITION_TARGET_LOCAL_NED, velocity and yaw rate in the body frame. The goal
is NORTH EAST in metres of the local frame, or the position of a SET_POSITION_TARGET_LOCAL_NED that is sent to this
component. Nothing is observed while a message is missing or old, or a ray is not measured: the loop then sends its
fallback action. Height is the autopilot's. docs/running.md says what a vehicle needs; no real one was flown.
"""

import argparse
import math
import os
import sys
import time

import numpy as np

from quarl.airlearning_envs.config import PRESETS
from quarl.airlearning_envs.rules import ACTION_COMMANDS, ray_angles
from quarl.device.agent.loop.client import Client, LoopError

os.environ["MAVLINK20"] = "1"
FRESH_PERIODS = 2.5
HEARTBEAT_S = 1.0
UNKNOWN = 65535
NORTH_ALIGNED, BODY_FRD = (0, 1), 12
"""MAV_FRAME_GLOBAL, which a sender means that says none, and MAV_FRAME_LOCAL_NED; MAV_FRAME_BODY_FRD."""
NO_POSITION_NO_ACCELERATION_NO_YAW = 0b010111000111
CENTIMETRE = 0.01


class Vehicle:
    """The autopilot's messages, as a navigation policy observes them."""

    def __init__(self, link, goal=None):
        try:
            from pymavlink import mavutil
        except ModuleNotFoundError as error:
            sys.exit(f"{error}. Type: make robots")
        self.mav = mavutil.mavlink
        own = self.mav.MAV_COMP_ID_ONBOARD_COMPUTER
        try:
            self.link = mavutil.mavlink_connection(link, source_system=1, source_component=own)
        except (ValueError, OSError) as error:
            sys.exit(
                f"The link {link!r} does not open: {error}. Type udpin:127.0.0.1:14550 or /dev/serial0, for example."
            )
        self.angles = np.degrees(ray_angles(PRESETS["hard"]))
        self.longest = PRESETS["hard"].max_range_m
        self.goal, self.last_command, self.began = goal, np.zeros(3), True
        self.newest, self.came, self.beat = {}, {}, 0.0

    def read(self):
        """Take what has come. Returns whether the obstacles were measured again, which is when to observe."""
        measured = False
        while (message := self.link.recv_msg()) is not None:
            kind = message.get_type()
            if kind == "SET_POSITION_TARGET_LOCAL_NED":
                if message.target_component == self.link.source_component and self.is_goal(message):
                    self.goal, self.last_command, self.began = (message.x, message.y), np.zeros(3), True
            elif kind in ("OBSTACLE_DISTANCE", "LOCAL_POSITION_NED", "ATTITUDE"):
                self.newest[kind], self.came[kind] = message, time.monotonic()
                measured = measured or kind == "OBSTACLE_DISTANCE"
        return measured

    def is_goal(self, message):
        """Whether a target is a place in the local frame: not one from here or from the nose, nor a velocity alone."""
        frame, mask = message.coordinate_frame, message.type_mask
        if frame == self.mav.MAV_FRAME_LOCAL_NED and not mask & 0b11:  # which would ignore x or y
            return True
        print(f"a target in frame {frame}, mask {mask}, is ignored; wanted is a position in frame 1", file=sys.stderr)
        return False

    def observation(self, period):
        """(32,) float32 in the order of the policy's fields, or None while a message is missing or old."""
        now = time.monotonic()
        if self.goal is None or len(self.came) < 3 or now - min(self.came.values()) > FRESH_PERIODS * period:
            return None
        place, attitude = self.newest["LOCAL_POSITION_NED"], self.newest["ATTITUDE"]
        north, east = self.goal[0] - place.x, self.goal[1] - place.y
        cosine, sine = math.cos(attitude.yaw), math.sin(attitude.yaw)
        forward, right = cosine * place.vx + sine * place.vy, cosine * place.vy - sine * place.vx
        bearing = math.atan2(cosine * east - sine * north, cosine * north + sine * east)
        own = [bearing, math.hypot(north, east), forward, right, attitude.yawspeed]
        return np.concatenate([self.ranges(), own, self.last_command]).astype(np.float32)

    def ranges(self):
        """Each ray's distance in m: that of the sector it lies in; NaN where it was not measured.

        Nothing is farther than the sensor sees: with no obstacle up to max_distance, so much is free and no more. Below
        min_distance something is near, and how near is not known better than the message says.
        """
        message, attitude = self.newest["OBSTACLE_DISTANCE"], self.newest.get("ATTITUDE")
        step = message.increment_f or message.increment
        if message.frame in NORTH_ALIGNED:
            first = message.angle_offset - (math.nan if attitude is None else math.degrees(attitude.yaw))
        else:
            first = message.angle_offset if message.frame == BODY_FRD else math.nan
        if not (step > 0 and math.isfinite(first)):
            return np.full(len(self.angles), np.nan)
        # Sector 0 reaches half a step to either side of its angle, and behind a whole turn the same sectors come again.
        sectors = ((self.angles - first + step / 2) % 360 // step).astype(int)
        inside = sectors < len(message.distances)
        values = np.array(message.distances, float)[np.where(inside, sectors, 0)]
        metres = np.minimum(np.minimum(values, message.max_distance) * CENTIMETRE, self.longest)
        return np.where(inside & (values != UNKNOWN), metres, np.nan)

    def command(self, command):
        """Send forward and rightward speed (m/s) and yaw rate (rad/s, to the right)."""
        self.last_command = np.array(command, float)
        forward, right, yaw_rate = map(float, command)
        ignored = NO_POSITION_NO_ACCELERATION_NO_YAW
        since_boot = int(1000 * time.monotonic()) & 0xFFFFFFFF
        self.link.mav.set_position_target_local_ned_send(
            since_boot, 1, 1, self.mav.MAV_FRAME_BODY_NED, ignored, 0, 0, 0, forward, right, 0, 0, 0, 0, 0, yaw_rate
        )

    def say_alive(self):
        """Send a heartbeat a second, as every component does."""
        if time.monotonic() - self.beat >= HEARTBEAT_S:
            self.beat = time.monotonic()
            kind, autopilot = self.mav.MAV_TYPE_ONBOARD_CONTROLLER, self.mav.MAV_AUTOPILOT_INVALID
            self.link.mav.heartbeat_send(kind, autopilot, 0, 0, self.mav.MAV_STATE_ACTIVE)


def main(socket, link, goal):
    """Join the loop and the autopilot until one of them is gone."""
    vehicle = Vehicle(link, goal)
    with Client.connect(socket) as policy:
        period = policy.description.period_ns / 1e9
        while True:
            if vehicle.read():
                observation = vehicle.observation(period)
                if observation is not None:
                    policy.send(observation, start=vehicle.began)
                    vehicle.began = False
            action = policy.receive(timeout_s=0.001)
            if action is not None and vehicle.came:  # an autopilot that has not been heard has no address
                vehicle.command(ACTION_COMMANDS[action.index] if policy.description.discrete else action.outputs)
            if vehicle.came:
                vehicle.say_alive()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("socket", help="the loop's, ~/quarl/run/I.sock")
    parser.add_argument("link", nargs="?", default="udpin:127.0.0.1:14550", help="as pymavlink names it")
    parser.add_argument("goal", nargs="*", type=float, metavar="NORTH EAST", help="in metres of the local frame")
    arguments = parser.parse_args()
    if len(arguments.goal) not in (0, 2):
        parser.error(f"the goal is {arguments.goal}; it must be two numbers, NORTH EAST")
    try:
        main(arguments.socket, arguments.link, arguments.goal or None)
    except LoopError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
