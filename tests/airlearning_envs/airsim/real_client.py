"""A flight with one of AirSim's own Python clients, in their environment: real_client.py PACKAGE PORT; prints JSON.

Written as their users write: moves with …Async, time with simContinueForTime, images and collisions as objects.
"""

import importlib
import json
import math
import sys

package, port = importlib.import_module(sys.argv[1]), int(sys.argv[2])
client = package.MultirotorClient(port=port, timeout_value=30)
found = {}


def continue_for(seconds: float) -> None:
    """Simulated ones: simContinueForTime counts wall seconds."""
    client.simContinueForTime(seconds / json.loads(client.getSettingsString())["ClockSpeed"])


client.confirmConnection()
found["first"] = client.simGetCollisionInfo().object_name
found["armed without control"] = client.armDisarm(True)
client.enableApiControl(True)
found["control"], found["armed"] = client.isApiControlEnabled(), client.armDisarm(True)

client.simPause(True)
found["paused"] = client.simIsPause()

pose = package.Pose(package.Vector3r(0.0, 0.0, -4.0), package.Quaternionr(0.0, 0.0, math.sqrt(0.5), math.sqrt(0.5)))
client.simSetVehiclePose(pose, True)
wall = client.simSpawnObject(
    "wall", "Cube", package.Pose(package.Vector3r(0.0, 9.0, -4.0)), package.Vector3r(4.0, 2.0, 8.0), False
)
again = client.simSpawnObject(
    "wall", "Cylinder", package.Pose(package.Vector3r(50.0, 0.0, 0.0)), package.Vector3r(1, 1, 1)
)
found["objects"] = [wall, again]
found["scene"] = client.simListSceneObjects(".*")
found["assets"] = "Cube" in client.simListAssets()
found["moved"] = client.simSetObjectPose(again, package.Pose(package.Vector3r(40.0, 0.0, 0.0)), True)
found["object at"] = client.simGetObjectPose(again).position.x_val
found["nowhere"] = client.simGetObjectPose("nothing").position.containsNan()
found["destroyed"] = [client.simDestroyObject(again), client.simDestroyObject(again)]

before = client.getMultirotorState().timestamp
mode = package.YawMode(True, 0.0)
first = client.moveByVelocityZBodyFrameAsync(3.0, 0.0, -4.0, 0.5, 0, mode)
continue_for(0.25)
state = client.getMultirotorState()
found["passed"] = (state.timestamp - before) / 1e9
second = client.moveByVelocityZBodyFrameAsync(3.0, 0.0, -4.0, 0.5, 0, mode)
continue_for(0.5)
found["answers"] = [first.get(), second.get()]
moving = client.getMultirotorState().kinematics_estimated
found["velocity"] = [moving.linear_velocity.x_val, moving.linear_velocity.y_val]
found["yaw"] = 2.0 * math.atan2(moving.orientation.z_val, moving.orientation.w_val)

image = client.simGetImages([package.ImageRequest("front_center", package.ImageType.DepthPlanar, True, False)])[0]
found["image"] = [image.height, image.width, len(image.image_data_float)]
found["ahead"] = image.image_data_float[72 * 256 + 128] + image.camera_position.y_val
found["top"] = image.image_data_float[0]
try:
    client.simGetImages([package.ImageRequest("nowhere", package.ImageType.DepthPlanar, True, False)])
except Exception as error:
    found["camera"] = str(error)
try:
    client.simSpawnObject("thing", "Nonsense", pose, package.Vector3r(1, 1, 1))
except Exception as error:
    found["asset"] = str(error)

found["clear"] = client.simGetCollisionInfo().has_collided
for _ in range(16):
    client.moveByVelocityZBodyFrameAsync(4.0, 0.0, -4.0, 0.5, 0, mode)
    continue_for(0.25)
touched = client.simGetCollisionInfo()
found["collision"] = [touched.has_collided, touched.object_name, client.simGetCollisionInfo().has_collided]
client.reset()
found["after reset"] = [client.isApiControlEnabled(), client.simIsPause(), client.simGetCollisionInfo().object_name]
print(json.dumps(found))
