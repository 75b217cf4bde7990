"""A served policy as a ROS 2 node, with or without ROS 2: policy/observation comes in, policy/action goes out.

    make robots
    quarl serve --target local --policy I
    .venv/bin/python examples/ros2.py artifacts/local-device/home/quarl/run/I.sock [SECONDS]

Both topics are std_msgs/msg/Float32MultiArray. An observation's data are the policy's raw values in the order of its
spec; an action's are the index of a discrete policy's action, or the values of a continuous one. The loop decides at
its own rate from the newest observation; its fallback actions go out, too.

Where ROS 2 is installed the topics are rclpy's (source its setup.bash; on a Pi also
PYTHONPATH=…/current/lib/quarl.zip). Where it is not they are Cyclone DDS's, in ROS 2's wire names: `ros2 topic echo
/policy/action` on another machine shows them.
ROS_DOMAIN_ID is heeded.
"""

import argparse
import os
import sys
import time
from dataclasses import dataclass

from quarl.device.agent.loop.client import Client, LoopError

OBSERVATION, ACTION = "policy/observation", "policy/action"
KEPT = 10
"""Messages that are kept for who reads late: ROS 2's own default."""


class RclpyTopics:
    """The two topics through the robot's own ROS 2."""

    def __init__(self):
        import rclpy
        from std_msgs.msg import Float32MultiArray

        rclpy.init()
        self._message, self._rclpy, self._newest = Float32MultiArray, rclpy, None
        self._node = rclpy.create_node("policy")
        self._node.create_subscription(Float32MultiArray, OBSERVATION, self._store_message, KEPT)
        self._actions = self._node.create_publisher(Float32MultiArray, ACTION, KEPT)

    def _store_message(self, message):
        self._newest = message.data

    def observation(self):
        """Return the newest observation since the last call, or None."""
        self._newest = None
        self._rclpy.spin_once(self._node, timeout_sec=0.0)
        return self._newest

    def act(self, values):
        """Publish an action."""
        self._actions.publish(self._message(data=values))


class DdsTopics:
    """The same two topics through Cyclone DDS alone."""

    def __init__(self):
        from cyclonedds.core import Policy, Qos
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.pub import DataWriter
        from cyclonedds.sub import DataReader
        from cyclonedds.topic import Topic
        from cyclonedds.util import duration

        # What a ROS 2 node has by default, so that either side takes the other: reliable, nothing kept for latecomers.
        reliable = Policy.Reliability.Reliable(max_blocking_time=duration(milliseconds=100))
        quality = Qos(reliable, Policy.Durability.Volatile, Policy.History.KeepLast(KEPT))
        self._message, self._layout = message_types()
        participant = DomainParticipant(int(os.environ.get("ROS_DOMAIN_ID", "0")))
        # "rt/" before a topic's name, and "_" behind a type's, are how ROS 2 names both on the wire.
        topics = [Topic(participant, f"rt/{name}", self._message, qos=quality) for name in (OBSERVATION, ACTION)]
        self._reader = DataReader(participant, topics[0], qos=quality)
        self._writer = DataWriter(participant, topics[1], qos=quality)

    def observation(self):
        """Return the newest observation since the last call, or None."""
        samples = [sample for sample in self._reader.take(N=KEPT) if isinstance(sample, self._message)]
        return samples[-1].data if samples else None

    def act(self, values):
        """Publish an action."""
        self._writer.write(self._message(layout=self._layout(dim=[], data_offset=0), data=values))


def message_types():
    """(Float32MultiArray, MultiArrayLayout) of std_msgs, as ROS 2 declares them to DDS."""
    from cyclonedds.idl import IdlStruct
    from cyclonedds.idl.types import float32, sequence, uint32

    @dataclass
    class Dimension(IdlStruct, typename="std_msgs::msg::dds_::MultiArrayDimension_"):
        label: str
        size: uint32
        stride: uint32

    @dataclass
    class Layout(IdlStruct, typename="std_msgs::msg::dds_::MultiArrayLayout_"):
        dim: sequence[Dimension]
        data_offset: uint32

    @dataclass
    class Message(IdlStruct, typename="std_msgs::msg::dds_::Float32MultiArray_"):
        layout: Layout
        data: sequence[float32]

    return Message, Layout


def topics():
    """Use the robot's own ROS 2 where it has one, else Cyclone DDS."""
    try:
        return RclpyTopics()
    except ModuleNotFoundError:
        pass
    try:
        return DdsTopics()
    except ModuleNotFoundError as error:
        sys.exit(f"{error}. Neither ROS 2 nor Cyclone DDS is installed. Type: make robots")


def main(socket, seconds=float("inf")):
    """Pass observations and actions on, for so long."""
    ros = topics()
    with Client.connect(socket) as policy:
        end = time.monotonic() + float(seconds)
        wanted = {policy.description.observation_size, policy.description.brought_size}
        while time.monotonic() < end:
            values = ros.observation()
            if values is not None and len(values) in wanted:
                policy.send(values)
            elif values is not None:
                print(f"an observation of {len(values)} values is ignored; wanted are {wanted}", file=sys.stderr)
            action = policy.receive(timeout_s=0.001)
            if action is not None:
                ros.act([float(action.index)] if policy.description.discrete else action.outputs.tolist())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("socket", help="the loop's, ~/quarl/run/I.sock")
    parser.add_argument("seconds", nargs="?", type=float, default=float("inf"))
    try:
        main(**vars(parser.parse_args()))
    except LoopError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
