"""Ask a device from Python: what it is, what it decides, how long that takes and how much memory it holds.

.venv/bin/python examples/ask_device.py                          the embedded device of this machine, Policy I
.venv/bin/python examples/ask_device.py pi@raspberrypi III       POLICY is a name or the folder of a bundle
"""

import argparse
import sys

try:
    from quarl.bench.device_session.access import bundle_with
    from quarl.device.deploy.agent_session import AgentSession
    from quarl.device.deploy.connection import connect
    from quarl.device.deploy.deploy import deploy
    from quarl.device.deploy.errors import HostError
    from quarl.device.deploy.probe import probe
    from quarl.policy.console import as_typed
    from quarl.policy.errors import PolicyError
    from quarl.policy.spec import Precision, RuntimeName
except ModuleNotFoundError as error:
    sys.exit(f"{error}. Type: make setup; .venv/bin/python examples/ask_device.py")


def main(target, policy):
    """Deploy a policy in int8 and print what the device answers."""
    with connect(target) as device:
        print(f"{target}: {probe(device).summary()}")
        bundle = bundle_with(policy, [Precision.INT8], RuntimeName.LITERT)  # converted first where it was not yet
        golden = bundle.golden()  # recorded observations, and the float policy's actions on them
        release = deploy(device, bundle, [Precision.INT8])
        print(f"release {release.release}: {'was there already' if release.unchanged else 'sent and checked there'}")

        with AgentSession(device, bundle.spec.name) as agent:  # a process on the device; it ends with this block
            loaded = agent.request("load", precision="int8")["loaded"]
            print(f"serving {loaded['file']}, {loaded['bytes']:,} bytes, in {loaded['runtime']}")

            rows = list(zip(golden.observations[:100], golden.actions[:100], strict=True))
            same = sum(agent.act(observation) == action for observation, action in rows)
            print(f"decides as the float policy does on {same} of {len(rows)} recorded observations")

            latency = agent.request("latency", warmup=100, runs=1000)
            times = ", ".join(f"{name} {value / 1000:.1f}" for name, value in latency["percentiles"].items())
            print(f"one decision, µs: {times}", *latency["invalid_reasons"])  # throttled, hot, under-voltage: not valid

            memory = agent.request("memory")["memory"]
            before, peak = memory["baseline"] / 1e6, memory["running_peak"] / 1e6
            print(f"resident: {peak:.1f} MB while deciding, {before:.1f} MB before any policy was loaded")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default="local")
    parser.add_argument("policy", nargs="?", default="I")
    arguments = parser.parse_args()
    try:
        main(arguments.target, arguments.policy)
    except (HostError, PolicyError) as error:  # each says what to type next
        sys.exit(as_typed(f"error: {error}"))
    except KeyboardInterrupt:
        sys.exit(130)
